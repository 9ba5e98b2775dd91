"""Elementwise multiply, aligned by axis."""

from collections.abc import Sequence

from jax import Array

from cke.kernel_registry.numeric import place, store, widen


def multiply(
    left: Array,
    right: Array,
    *,
    left_axes: Sequence[int] | None = None,
    right_axes: Sequence[int] | None = None,
    rank: int | None = None,
) -> Array:
    """`left · right`, each with its axes at the given places of the result."""
    y = widen(place(left, left_axes, rank)) * widen(place(right, right_axes, rank))
    return store(y, left.dtype)
