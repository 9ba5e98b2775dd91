"""GELU by the hyperbolic tangent."""

import math

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import settle, store, widen


def gelu_tanh(x: Array) -> Array:
    """`x/2 · (1 + tanh(sqrt(2/pi) · (x + 0.044715 x³)))`, as a sigmoid; 0 at -inf."""
    wide = widen(x)
    cube = settle(0.044715 * wide * wide * wide)
    share = lax.logistic(2.0 * math.sqrt(2.0 / math.pi) * (wide + cube))
    y = jnp.where(jnp.isneginf(wide), 0.0, wide * share)
    return store(y, x.dtype)
