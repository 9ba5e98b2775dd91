"""A linear that accumulates in f64: for diagnosis, never for speed."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, store


def linear_f64(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    contract: int = 1,
    start: int | None = None,
) -> Array:
    """`x · weightᵀ + bias` with exact products and f64 sums, rounded once to the dtype of x."""
    begin = x.ndim - contract if start is None else start
    moved = jnp.moveaxis(x, range(begin, begin + contract), range(-contract, 0))
    out = weight.shape[:-contract]
    over = (tuple(range(-contract + moved.ndim, moved.ndim)), tuple(range(len(out), weight.ndim)))
    with jax.enable_x64(True):
        y = lax.dot_general(moved.astype(jnp.float64), weight.astype(jnp.float64), (over, ((), ())))
        if bias is not None:
            y = y + lift(bias.astype(jnp.float64), y.ndim)
        y = store(y, x.dtype)
    return jnp.moveaxis(y, range(-len(out), 0), range(begin, begin + len(out)))
