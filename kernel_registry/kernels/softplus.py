"""The softplus."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import settle, store, widen


def softplus(x: Array) -> Array:
    """`log(1 + exp(x))`, without overflow."""
    wide = widen(x)
    return store(
        jnp.maximum(wide, 0.0) + settle(jnp.log1p(settle(jnp.exp(-jnp.abs(wide))))), x.dtype
    )
