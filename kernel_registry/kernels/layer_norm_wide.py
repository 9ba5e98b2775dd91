"""LayerNorm in f32 throughout; only the result is rounded to storage."""

from jax import Array

from cke.kernel_registry.kernels.layer_norm import affine, normalise
from cke.kernel_registry.numeric import store


def layer_norm_wide(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float, axes: int = 1
) -> Array:
    """`(x - mean) / sqrt(variance + eps) · weight + bias`, rounded once."""
    return store(affine(normalise(x, eps=eps, axes=axes), weight, bias), x.dtype)
