"""A new axis of equal slices."""

import jax.numpy as jnp
from jax import Array


def repeat(x: Array, *, axis: int, size: int) -> Array:
    """X with a new axis of `size` equal slices at `axis`."""
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    return jnp.broadcast_to(jnp.expand_dims(x, axis), shape)
