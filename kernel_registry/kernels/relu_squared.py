"""The squared rectifier."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import store, widen


def relu_squared(x: Array) -> Array:
    """`max(x, 0)²`."""
    wide = widen(x)
    return store(jnp.square(jnp.maximum(wide, 0.0)), x.dtype)
