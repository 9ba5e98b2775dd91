"""The exact GELU."""

import math

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import store, widen


def gelu_erf(x: Array) -> Array:
    """`x · Phi(x)` of the standard normal distribution; 0 at -inf."""
    wide = widen(x)
    share = 0.5 * lax.erfc(-wide * math.sqrt(0.5))
    y = jnp.where(jnp.isneginf(wide), 0.0, wide * share)
    return store(y, x.dtype)
