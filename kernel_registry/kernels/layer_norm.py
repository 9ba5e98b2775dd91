"""LayerNorm in f32; the normalised value is rounded to storage before the affine."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def normalise(x: Array, *, eps: float, axes: int) -> Array:
    """f32 `(x - mean) / sqrt(variance + eps)` over the last `axes` axes."""
    over = tuple(range(x.ndim - axes, x.ndim))
    wide = widen(x)
    centred = wide - settle(jnp.mean(wide, axis=over, keepdims=True))
    variance = settle(jnp.mean(settle(centred * centred), axis=over, keepdims=True))
    return settle(centred * lax.rsqrt(variance + eps))


def affine(y: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    """f32 `y · weight + bias`, the product rounded before the sum."""
    if weight is not None:
        y = settle(y * lift(widen(weight), y.ndim))
    return y if bias is None else y + lift(widen(bias), y.ndim)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float, axes: int = 1
) -> Array:
    """`(x - mean) / sqrt(variance + eps) · weight + bias`, rounded before and after the affine."""
    y = store(normalise(x, eps=eps, axes=axes), x.dtype)
    return store(affine(widen(y), weight, bias), x.dtype)
