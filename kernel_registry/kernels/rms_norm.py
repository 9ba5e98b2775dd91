"""RMSNorm in f32; the normalised value is rounded to storage before the weight.

Squares are exact in f64, so a sum contracted with them gives the same bits.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def normalise(x: Array, gate: Array | None = None, *, eps: float, axes: int, groups: int) -> Array:
    """f32 `x / sqrt(mean(x²) + eps)` over each of `groups` groups of the last `axes` axes."""
    wide = widen(x)
    if gate is not None:
        wide = settle(wide * settle(widen(gate) * lax.logistic(widen(gate))))
    flat = wide.reshape(*x.shape[: x.ndim - axes], groups, -1)
    with jax.enable_x64(True):
        exact = flat.astype(jnp.float64)
        mean_square = jnp.mean(exact * exact, axis=-1, keepdims=True)
        scale = lax.rsqrt(mean_square + eps).astype(flat.dtype)
    return settle(flat * scale).reshape(x.shape)


def rms_norm(
    x: Array,
    gate: Array | None = None,
    weight: Array | None = None,
    *,
    eps: float,
    axes: int = 1,
    offset: int = 0,
    groups: int = 1,
) -> Array:
    """`x / sqrt(mean(x²) + eps) · (weight + offset)`, rounded after each of the two products."""
    y = store(normalise(x, gate, eps=eps, axes=axes, groups=groups), x.dtype)
    if weight is None:
        return y
    share = widen(weight) + offset if offset else widen(weight)
    return store(widen(y) * lift(share, x.ndim), x.dtype)
