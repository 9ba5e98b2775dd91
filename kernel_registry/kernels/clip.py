"""A hard limit."""

import jax.numpy as jnp
from jax import Array


def clip(x: Array, *, low: float | None = None, high: float | None = None) -> Array:
    """X limited to [low, high]; NaN stays."""
    raised = x if low is None else jnp.maximum(x, jnp.asarray(low, x.dtype))
    return raised if high is None else jnp.minimum(raised, jnp.asarray(high, x.dtype))
