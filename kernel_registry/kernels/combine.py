"""The weighted sum over selected experts."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import settle, store, widen


def combine(y: Array, weights: Array, *, axis: int) -> Array:
    """The sum of y over the expert axis, weighted; products and sum in f32."""
    share = widen(weights).reshape(*weights.shape, *[1] * (y.ndim - weights.ndim))
    return store(jnp.sum(settle(widen(y) * share), axis=axis), y.dtype)
