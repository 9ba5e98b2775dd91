"""A smooth limit."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import store, widen


def softcap(x: Array, *, cap: float | None) -> Array:
    """`cap · tanh(x / cap)`."""
    return x if cap is None else store(cap * jnp.tanh(widen(x) / cap), x.dtype)
