"""State of a session: `{step: {slot: {lane: array, "positions": …, "count": …}}}`.

A cache keeps rows in append order: the row appended as number i lies at i modulo its capacity, so
a windowed cache is a ring and a full one never wraps. Growing copies each row to its place in the
larger cache. Shift and carry slots have a fixed size and start at zero.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cke.runtime.buckets import key_bucket
from cke.schemas.call_ir import Program
from cke.schemas.ir import Parameter, StateSlot

DTYPES = {
    "f32": jnp.float32,
    "bf16": jnp.bfloat16,
    "f16": jnp.float16,
    "f64": jnp.float64,
    "i32": jnp.int32,
    "bool": jnp.bool_,
}
SessionState = dict[str, dict[str, dict[str, Array]]]
Capacities = dict[int | None, int]
"""Rows of a cache by its window; None is a cache without one."""


def windows(program: Program) -> frozenset[int | None]:
    """Return the windows of the program's caches, None among them for a cache without one."""
    return frozenset(slot.window for slot in program.slots if slot.kind == "cache")


def capacities(program: Program, rows: int, segment: int, *, uniform: bool = False) -> Capacities:
    """Return the capacity of each kind of cache for `rows` rows, written `segment` at a time.

    A window W needs W - 1 + T rows: then no row is overwritten while a query may read it. With
    `uniform`, every cache keeps every row, and none is a ring.
    """
    full = key_bucket(rows)
    return {
        window: full if window is None or uniform else min(full, key_bucket(window - 1 + segment))
        for window in windows(program)
    }


def initial_state(program: Program, batch: int, sizes: Capacities) -> SessionState:
    """Return the empty state of a batch."""
    state: SessionState = {}
    for slot in program.slots:
        step, name = _split(slot.name)
        state.setdefault(step, {})[name] = _empty_slot(slot, batch, sizes)
    return state


def _split(slot: str) -> tuple[str, str]:
    parts = slot.split(".")
    at = 2 if parts[0] == "layer" else 1
    return ".".join(parts[:at]), ".".join(parts[at:])


def _empty_slot(slot: StateSlot, batch: int, sizes: Capacities) -> dict[str, Array]:
    if slot.kind != "cache":
        return {lane.name: _zeros(lane, {"B": batch}) for lane in slot.lanes}
    rows = sizes[slot.window]
    lanes = {lane.name: _zeros(lane, {"B": batch, "S": rows}) for lane in slot.lanes}
    positions = jax.device_put(np.full((batch, rows), -1, np.int32))
    return {**lanes, "positions": positions, "count": jax.device_put(np.zeros(batch, np.int32))}


def _zeros(lane: Parameter, symbols: dict[str, int]) -> Array:
    shape = tuple(symbols[size] if isinstance(size, str) else size for size in lane.type.shape)
    empty: Array = jax.device_put(np.zeros(shape, np.dtype(DTYPES[lane.type.dtype])))
    return empty


def grow_state(state: SessionState, program: Program, sizes: Capacities) -> SessionState:
    """Return the state with every cache at its capacity of `sizes`, its rows in place."""
    grown = {step: dict(slots) for step, slots in state.items()}
    for slot in program.slots:
        step, name = _split(slot.name)
        if slot.kind == "cache" and state[step][name]["positions"].shape[1] < sizes[slot.window]:
            grown[step][name] = _grow_slot(state[step][name], sizes[slot.window])
    return grown


@partial(jax.jit, static_argnames="rows")
def _grow_slot(slot: dict[str, Array], rows: int) -> dict[str, Array]:
    """Return the slot with room for `rows` rows: row i moves from i % old to i % rows."""
    old = slot["positions"].shape[1]
    count = slot["count"][:, None]
    place = jnp.arange(rows, dtype=jnp.int32)[None, :]
    number = place + (count - 1 - place) // rows * rows
    kept = (number >= 0) & (number >= count - old)
    source = jnp.where(kept, number % old, 0)
    moved: dict[str, Array] = {"count": slot["count"]}
    for lane, array in slot.items():
        if lane != "count":
            index = source.reshape(source.shape + (1,) * (array.ndim - 2))
            filler = jnp.asarray(-1 if lane == "positions" else 0, array.dtype)
            taken = jnp.take_along_axis(array, index, axis=1)
            moved[lane] = jnp.where(kept.reshape(index.shape), taken, filler)
    return moved


def state_bytes(state: SessionState) -> int:
    """Return the size of the state in bytes."""
    return sum(array.nbytes for array in jax.tree.leaves(state))
