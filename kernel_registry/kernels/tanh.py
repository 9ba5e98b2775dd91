"""The hyperbolic tangent."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import store, widen


def tanh(x: Array) -> Array:
    """`tanh(x)`."""
    wide = widen(x)
    return store(jnp.tanh(wide), x.dtype)
