"""Elementwise product with a constant."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import store, widen


def scale(x: Array, *, by: float | Array, constant: str = "f32", dtype: str | None = None) -> Array:
    """`x · by`, the constant rounded to f32, or to the dtype of x when it is `storage`."""
    share = jnp.asarray(by, jnp.float32)
    if constant == "storage":
        share = widen(store(share, x.dtype))
    return store(widen(x) * share, x.dtype)
