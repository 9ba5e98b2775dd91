"""One slice of an axis."""

from jax import Array, lax


def take(x: Array, *, axis: int, at: int) -> Array:
    """Slice `at` of an axis; a negative one counts from the end."""
    return lax.index_in_dim(x, at, axis, keepdims=False)
