"""LayerNorm in f32; the normalised value is rounded to storage before the affine."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def normalise(x: Array, *, eps: float, axes: int) -> Array:
    """f32 `(x - mean) / sqrt(variance + eps)` over the last `axes` axes."""
    wide = widen(x).reshape(*x.shape[: x.ndim - axes], -1)
    centred = settle(wide - mean(wide))
    variance = mean(settle(centred * centred))
    return settle(centred * lax.rsqrt(variance + eps)).reshape(x.shape)


def mean(x: Array) -> Array:
    """The mean of the last axis, kept as size 1, by a dot: no fusion changes a dot's order."""
    ones = jnp.ones((x.shape[-1],), x.dtype)
    return settle(jnp.dot(x, ones, precision=lax.Precision.HIGHEST)[..., None] / x.shape[-1])


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
