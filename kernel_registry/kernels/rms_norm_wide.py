"""RMSNorm in f32 throughout; only the result is rounded to storage."""

from jax import Array

from cke.kernel_registry.kernels.rms_norm import normalise
from cke.kernel_registry.numeric import lift, store, widen


def rms_norm_wide(
    x: Array,
    gate: Array | None = None,
    weight: Array | None = None,
    *,
    eps: float,
    axes: int = 1,
    offset: int = 0,
    groups: int = 1,
) -> Array:
    """`x / sqrt(mean(x²) + eps) · (weight + offset)`, rounded once."""
    y = normalise(x, gate, eps=eps, axes=axes, groups=groups)
    if weight is not None:
        share = widen(weight) + offset if offset else widen(weight)
        y = y * lift(share, x.ndim)
    return store(y, x.dtype)
