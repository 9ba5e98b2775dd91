"""Summaries of captured edges, by a program of their own over the arrays that a run returned.

The program that ran is not touched: what it returned goes into a second one, which gives min, max,
sum, sum of squares and the counts of NaN and finite elements of each edge. Layers of one kind go
in together, so that a decode step needs one call. Only what the run computed counts: padding rows
and empty cache rows are left out, as `validity` says.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.schemas.trace import Segment, Summary

Axes = tuple[tuple[str, tuple[str, ...]], ...]
"""The edges that are summarised, by captured key, with their axes."""


def places(segment: Segment, width: int) -> dict[str, NDArray[Any]]:
    """Return what the masks of a forward depend on, padded to its bucket of `width` columns."""
    positions = np.asarray(segment.positions, np.int32)
    pad = ((0, 0), (0, width - positions.shape[1]))
    index = np.asarray(segment.append_index, np.int32)
    return {
        "positions": np.pad(positions, pad, constant_values=-1),
        "append_index": index + width if segment.phase == "encode" else index,
        "counts": np.asarray(segment.cache_token_count, np.int32),
    }


@partial(jax.jit, static_argnames=("axes", "padded"))
def summary_program(
    groups: Sequence[Mapping[str, Array]], where: Mapping[str, Array], *, axes: Axes, padded: bool
) -> Array:
    """Return f64[layers, edges, 6]: min, max, sum, sum of squares, NaN count, finite count.

    `padded` says that a position may be padding; without it edges over T need no mask. Edges of
    one shape are summarised side by side, which keeps the program small.
    """
    alike: dict[Any, list[str]] = {}
    for key, names in axes:
        like = groups[0][key]
        alike.setdefault((names, like.shape, like.dtype), []).append(key)
    with jax.enable_x64(True):
        found: dict[str, Array] = {}
        for (names, _, _), keys in alike.items():
            values = jnp.stack([group[key] for key in keys for group in groups])
            numbers = _edge(values, names, where, padded).reshape(len(keys), len(groups), 6)
            found |= zip(keys, numbers, strict=True)
        return jnp.stack([found[key] for key, _ in axes], axis=1)


def _edge(values: Array, axes: tuple[str, ...], where: Mapping[str, Array], padded: bool) -> Array:
    count = values.shape[0]
    values = values.astype(jnp.float32)
    finite, nan = jnp.isfinite(values), jnp.isnan(values)
    if "B" in axes and ("S" in axes or (padded and "T" in axes)):
        mask = _mask(axes, values.shape[1:], where)[None]
        finite, nan = finite & mask, nan & mask
    exact = jnp.where(finite, values, jnp.float32(0)).astype(jnp.float64)
    found = (
        jnp.where(finite, values, jnp.float32(jnp.inf)).reshape(count, -1).min(1),
        jnp.where(finite, values, jnp.float32(-jnp.inf)).reshape(count, -1).max(1),
        exact.reshape(count, -1).sum(1),
        (exact * exact).reshape(count, -1).sum(1),
        nan.reshape(count, -1).sum(1, dtype=jnp.int32),
        finite.reshape(count, -1).sum(1, dtype=jnp.int32),
    )
    return jnp.stack([item.astype(jnp.float64) for item in found], axis=1)


def _mask(axes: tuple[str, ...], shape: tuple[int, ...], where: Mapping[str, Array]) -> Array:
    """Return the mask of `validity.valid_mask`, over a bucket, in terms of device arrays."""
    mask = jnp.ones((1,) * len(axes), jnp.bool_)
    given = where["positions"] >= 0
    if "T" in axes:
        mask = mask & _along(given, axes, "B", "T")
    if "S" not in axes:
        return mask
    keys = jnp.arange(shape[axes.index("S")], dtype=jnp.int32)
    mask = mask & _along(keys[None, :] < where["counts"][:, None], axes, "B", "S")
    if "T" in axes:
        rows = where["append_index"][:, None] + jnp.cumsum(given, axis=1, dtype=jnp.int32) - 1
        seen = keys[None, None, :] <= rows[:, :, None]
        mask = mask & _along(seen, axes, "B", "T", "S")
    return mask


def _along(values: Array, axes: tuple[str, ...], *names: str) -> Array:
    order = sorted(range(len(names)), key=lambda i: axes.index(names[i]))
    sizes = dict(zip(names, values.shape, strict=True))
    return values.transpose(order).reshape([sizes.get(name, 1) for name in axes])


def summary_of(row: Sequence[float], elements: int) -> Summary:
    """Return the summary of one edge, of `elements` counted elements, from the program's row."""
    low, high, total, square, nan, finite = row
    some = finite > 0
    return Summary(
        min=low if some else None,
        max=high if some else None,
        mean=total / finite if some else None,
        l2=square**0.5 if some else None,
        nan=int(nan),
        inf=int(elements - nan - finite),
    )
