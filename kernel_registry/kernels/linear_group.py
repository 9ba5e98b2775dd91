"""Several linears over one input as one dot: q, k and v; gate and up."""

from collections.abc import Sequence

from jax import Array
from jax import numpy as jnp

from cke.kernel_registry.kernels.linear import linear


def linear_group(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    sizes: Sequence[int],
    contract: int = 1,
    start: int | None = None,
) -> tuple[Array, ...]:
    """One result per size: the linear of that many rows of the first axis of `weight`."""
    y = linear(x, weight, bias, contract=contract, start=start)
    axis = x.ndim - contract if start is None else start
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return tuple(jnp.split(y, ends, axis=axis))
