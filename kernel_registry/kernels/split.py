"""Pieces of an axis."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array


def split(x: Array, *, axis: int, sizes: Sequence[int]) -> tuple[Array, ...]:
    """Pieces of the given sizes along an axis."""
    return tuple(jnp.split(x, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)], axis=axis))
