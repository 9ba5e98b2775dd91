"""The summaries of `summaries` on the host, for a device whose memory is the host's.

On a CPU nothing has to be moved, and NumPy reduces several times faster than a compiled program.
Both give the same numbers; a test compares them. Arrays of one shape and dtype are folded side by
side, a large one in blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.runtime.summaries import Axes
from cke.runtime.validity import canonical_shape, valid_mask
from cke.schemas.trace import Segment

BLOCK = 1 << 20
SMALL = 1 << 16
Rows = NDArray[np.float64]


def host_summaries(
    groups: Sequence[Mapping[str, Array]], axes: Axes, segment: Segment
) -> list[list[list[float]]]:
    """Return [layers, edges, 6]: min, max, sum, sum of squares, NaN count, finite count."""
    alike: dict[Any, list[str]] = {}
    for key, names in axes:
        array = groups[0][key]
        alike.setdefault((names, array.shape, array.dtype), []).append(key)
    found: dict[str, Rows] = {}
    for (names, shape, _), keys in alike.items():
        kept = canonical_shape(shape, names, segment)
        mask = valid_mask(names, kept, segment)
        flat = None if mask is None or mask.all() else np.broadcast_to(mask, kept).reshape(-1)
        arrays = [np.asarray(group[key]) for key in keys for group in groups]
        if kept != shape:
            slices = tuple(slice(size) for size in kept)
            arrays = [array[slices] for array in arrays]
        rows = _folded(arrays, flat).reshape(len(keys), len(groups), 6)
        found |= zip(keys, rows, strict=True)
    whole: list[list[list[float]]] = np.stack([found[key] for key, _ in axes], axis=1).tolist()
    return whole


def _folded(arrays: list[NDArray[Any]], mask: NDArray[np.bool_] | None) -> Rows:
    """Return [arrays, 6] of arrays of one shape."""
    if arrays[0].size <= SMALL:
        values = np.concatenate([array.reshape(1, -1) for array in arrays])
        return _fold(values if mask is None else values[:, mask])
    found = []
    for array in arrays:
        flat = array.reshape(1, -1)
        blocks = [slice(start, start + BLOCK) for start in range(0, flat.shape[1], BLOCK)]
        parts = [
            _fold(flat[:, block] if mask is None else flat[:, block][:, mask[block]])
            for block in blocks
        ]
        found.append(_merged(np.stack(parts)))
    return np.concatenate(found)


def _fold(values: NDArray[Any]) -> Rows:
    """Return [rows, 6] of values [rows, elements]."""
    count, size = values.shape
    if size == 0:
        return np.tile(np.array([np.inf, -np.inf, 0, 0, 0, 0], np.float64), (count, 1))
    exact = values.astype(np.float64)
    finite = np.isfinite(exact)
    if finite.all():
        low, high = exact.min(1), exact.max(1)
        nan, number = np.zeros(count), np.full(count, float(size))
    else:
        low = np.where(finite, exact, np.inf).min(1)
        high = np.where(finite, exact, -np.inf).max(1)
        nan, number = np.isnan(exact).sum(1), finite.sum(1)
        exact = np.where(finite, exact, 0.0)
    squares = np.einsum("ij,ij->i", exact, exact)
    return np.stack([low, high, exact.sum(1), squares, nan, number], axis=1)


def _merged(parts: Rows) -> Rows:
    """Return [rows, 6] of [parts, rows, 6]."""
    sums: Rows = parts.sum(axis=0)
    sums[:, 0], sums[:, 1] = parts[..., 0].min(axis=0), parts[..., 1].max(axis=0)
    return sums
