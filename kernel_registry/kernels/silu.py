"""The SiLU, or swish."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import store, widen


def silu(x: Array) -> Array:
    """`x · sigmoid(x)`; 0 at -inf."""
    wide = widen(x)
    y = jnp.where(jnp.isneginf(wide), 0.0, wide * lax.logistic(wide))
    return store(y, x.dtype)
