"""A linear whose operands are widened to f32 first: routers, and weights stored in f32."""

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.kernels.linear import linear
from cke.kernel_registry.numeric import store, widen


def linear_wide(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    contract: int = 1,
    start: int | None = None,
) -> Array:
    """`x · weightᵀ + bias` in f32, rounded once to the dtype of x."""
    wide = None if bias is None else bias.astype(jnp.float32)
    y = linear(widen(x), widen(weight), wide, contract=contract, start=start)
    return store(y, x.dtype)
