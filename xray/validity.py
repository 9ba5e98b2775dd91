"""Which elements of a capture both sides computed: no padding rows, no empty cache rows."""

import numpy as np
from numpy.typing import NDArray

from cke.schemas.trace import Record, Segment


def valid_elements(record: Record, segment: Segment) -> NDArray[np.bool_] | None:
    """Return a mask that broadcasts to the record's shape, or None when every element counts.

    A key is valid when it is cached and, for scores and probabilities, not after the query.
    """
    axes = record.axes
    positions = np.array(segment.positions)
    mask = np.ones((1,) * len(axes), bool)
    if "T" in axes and (positions < 0).any():
        mask = mask & _along(positions >= 0, axes, record.shape, "B", "T")
    if "S" not in axes:
        return None if mask.all() else mask
    counts = np.array(segment.cache_token_count)
    keys = np.arange(record.shape[axes.index("S")])
    cached = keys[None, :] < counts[:, None]
    mask = mask & _along(cached, axes, record.shape, "B", "S")
    if "T" in axes:
        rows = np.array(segment.append_index)[:, None] + np.cumsum(positions >= 0, axis=1) - 1
        seen = keys[None, None, :] <= rows[:, :, None]
        mask = mask & _along(seen, axes, record.shape, "B", "T", "S")
    return mask


def _along(
    values: NDArray[np.bool_], axes: tuple[str, ...], shape: tuple[int, ...], *names: str
) -> NDArray[np.bool_]:
    target = [1] * len(axes)
    for name in names:
        target[axes.index(name)] = shape[axes.index(name)]
    order = sorted(range(len(names)), key=lambda i: axes.index(names[i]))
    return values.transpose(order).reshape(target)
