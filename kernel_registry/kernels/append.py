"""Append to a cache: rows with a position go behind those written before."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift

Slot = dict[str, Array]


def append(
    slot: Mapping[str, Array],
    positions: Array,
    *rows: Array,
    lanes: Sequence[str],
    window: int | None = None,
) -> tuple[Any, ...]:
    """The new slot, every row of each lane over S, and the position of each row (-1: empty).

    Rows at position -1 are not written and do not count. With a window the cache is a ring.
    """
    values = dict(zip(lanes, rows, strict=True)) | {"positions": positions}
    if positions.shape[1] == 1:
        new = _append_one(slot, values, window)
    else:
        new = _append_many(slot, values, window)
    valid = (positions >= 0).astype(jnp.int32)
    new["count"] = slot["count"] + jnp.sum(valid, axis=1, dtype=jnp.int32)
    return (new, *(new[name] for name in lanes), new["positions"])


def _append_one(slot: Mapping[str, Array], values: Slot, window: int | None) -> Slot:
    """One row per sequence: in place, at its index."""
    capacity = slot["positions"].shape[1]
    at = slot["count"] % capacity if window is not None else slot["count"]
    kept = (values["positions"][:, 0] >= 0) & (at < capacity)
    batch = at.shape[0]
    new: Slot = {}
    for name, row in values.items():
        if batch == 1:
            index = jnp.minimum(at[0], capacity - 1)
            old = lax.dynamic_slice_in_dim(slot[name], index, 1, axis=1)
            chosen = jnp.where(lift(kept[0], row.ndim), row, old)
            new[name] = lax.dynamic_update_slice_in_dim(slot[name], chosen, index, axis=1)
        else:
            place = jnp.where(kept, at, capacity)
            new[name] = slot[name].at[jnp.arange(batch), place].set(row[:, 0], mode="drop")
    return new


def _append_many(slot: Mapping[str, Array], values: Slot, window: int | None) -> Slot:
    """Each row of the cache takes the last row that is written to it, or keeps its own."""
    positions = values["positions"]
    capacity, length = slot["positions"].shape[1], positions.shape[1]
    valid = positions >= 0
    written = jnp.sum(valid, axis=1, dtype=jnp.int32)[:, None]
    order = jnp.argsort(~valid, axis=1, stable=True)
    rank = jnp.arange(capacity, dtype=jnp.int32)[None, :] - slot["count"][:, None]
    if window is not None:
        rank = rank % capacity
        rank = rank + (written - 1 - rank) // capacity * capacity
    takes = (rank >= 0) & (rank < written)
    source = jnp.take_along_axis(order, jnp.clip(rank, 0, length - 1), axis=1)
    new: Slot = {}
    for name, row in values.items():
        tail = (1,) * (row.ndim - 2)
        picked = jnp.take_along_axis(row, source.reshape(*source.shape, *tail), axis=1)
        new[name] = jnp.where(takes.reshape(*takes.shape, *tail), picked, slot[name])
    return new
