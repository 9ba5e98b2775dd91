"""Definitions of split, concat, repeat and take; they compute nothing."""

from collections.abc import Sequence

import numpy as np

from cke.kernel_registry.references.elementwise import place
from cke.kernel_registry.references.types import F64


def split(x: F64, *, axis: int, sizes: Sequence[int]) -> tuple[F64, ...]:
    """Pieces of the given sizes along an axis."""
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def concat(*pieces: F64, axis: int, places: Sequence[Sequence[int]] | None = None) -> F64:
    """The pieces joined along an axis, each repeated over the other axes that it lacks."""
    if places is None:
        return np.concatenate(pieces, axis=axis)
    rank = max(map(len, places))
    placed = [place(x, at, rank) for x, at in zip(pieces, places, strict=True)]
    common = np.broadcast_shapes(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in placed))
    return np.concatenate(
        [np.broadcast_to(x, (*common[:axis], x.shape[axis], *common[axis + 1 :])) for x in placed],
        axis=axis,
    )


def repeat(x: F64, *, axis: int, size: int) -> F64:
    """X with a new axis of `size` equal slices at `axis`."""
    return np.repeat(np.expand_dims(x, axis), size, axis=axis)


def take(x: F64, *, axis: int, at: int) -> F64:
    """Slice `at` of an axis."""
    slice_: F64 = np.take(x, at, axis=axis)
    return slice_
