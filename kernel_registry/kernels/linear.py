"""One dot of x with a weight in [out, in] layout."""

import math

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, store


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    contract: int = 1,
    start: int | None = None,
) -> Array:
    """`x · weightᵀ + bias` over `contract` axes of x that begin at `start`, the last by default."""
    begin = x.ndim - contract if start is None else start
    ends = begin + contract == x.ndim
    moved = x if ends else jnp.moveaxis(x, range(begin, begin + contract), range(-contract, 0))
    rows, out = moved.shape[:-contract], weight.shape[:-contract]
    width = math.prod(weight.shape[-contract:])
    y = lax.dot_general(
        moved.reshape(*rows, width),
        weight.reshape(math.prod(out), width),
        (((len(rows),), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    if bias is not None:
        y = y + lift(bias.astype(jnp.float32).reshape(-1), y.ndim)
    y = store(y, x.dtype).reshape(*rows, *out)
    return y if ends else jnp.moveaxis(y, range(-len(out), 0), range(begin, begin + len(out)))
