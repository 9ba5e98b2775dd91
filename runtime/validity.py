"""Which elements of a capture a run computed: no padding rows, no empty cache rows.

A forward is padded to a bucket; a capture has the shape of what was asked for.

A key is valid when it is cached and, for scores and probabilities, not after the query; where
there is no state, when it is no padding.
"""

import numpy as np
from numpy.typing import NDArray

from cke.schemas.trace import Segment

Mask = NDArray[np.bool_]


def valid_mask(axes: tuple[str, ...], shape: tuple[int, ...], segment: Segment) -> Mask | None:
    """Return a mask that broadcasts to `shape`, or None when every element counts."""
    positions = np.array(segment.positions)
    mask = np.ones((1,) * len(axes), bool)
    if "B" not in axes:
        return None
    if "T" in axes and (positions < 0).any():
        mask = mask & _along(positions >= 0, axes, shape, "B", "T")
    if "S" not in axes:
        return None if mask.all() else mask
    counts = np.array(segment.cache_token_count)
    keys = np.arange(shape[axes.index("S")])
    cached = keys[None, :] < counts[:, None]
    mask = mask & _along(cached, axes, shape, "B", "S")
    if "T" in axes and segment.phase != "encode":
        rows = np.array(segment.append_index)[:, None] + np.cumsum(positions >= 0, axis=1) - 1
        seen = keys[None, None, :] <= rows[:, :, None]
        mask = mask & _along(seen, axes, shape, "B", "T", "S")
    return mask


def canonical_shape(
    shape: tuple[int, ...], axes: tuple[str, ...], segment: Segment
) -> tuple[int, ...]:
    """Return the shape without bucket padding: T of the segment, S of what is cached.

    An edge may have fewer rows than the segment, as the patches of an image before the first one.
    """
    sizes = {"T": len(segment.tokens[0]), "S": max(segment.cache_token_count)}
    return tuple(min(sizes.get(name, size), size) for name, size in zip(axes, shape, strict=True))


def _along(values: Mask, axes: tuple[str, ...], shape: tuple[int, ...], *names: str) -> Mask:
    target = [1] * len(axes)
    for name in names:
        target[axes.index(name)] = shape[axes.index(name)]
    order = sorted(range(len(names)), key=lambda i: axes.index(names[i]))
    return values.transpose(order).reshape(target)
