"""Where a forward wrote to its cache, read from the cache itself: a trace states what was done."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from cke.schemas.trace import Segment


def held_positions(state: Mapping[str, Mapping[str, Any]]) -> np.ndarray | None:
    """Return i32[B, S], the position of each row of the first cache; None without a cache."""
    for slots in state.values():
        for slot in slots.values():
            if isinstance(slot, Mapping) and "positions" in slot and "count" in slot:
                return np.array(slot["positions"])
    return None


def as_written(
    segment: Segment, before: np.ndarray | None, state: Mapping[str, Mapping[str, Any]]
) -> Segment:
    """Return the segment with the append index and token count that the first cache shows.

    `before` holds the positions of the rows before the forward: the first row that changed is
    where it wrote. A sequence none of whose rows changed has index -1. Without a cache the plan
    stands.
    """
    held = held_positions(state)
    if held is None:
        return segment
    old = np.full_like(held, -1)
    if before is not None:
        old[:, : before.shape[1]] = before[:, : held.shape[1]]
    index: list[int] = []
    for row, planned in enumerate(segment.append_index):
        if not any(position >= 0 for position in segment.positions[row]):
            index.append(planned)
            continue
        changed = np.flatnonzero(held[row] != old[row])
        index.append(int(changed[0]) if changed.size else -1)
    counts = tuple(int((held[row] >= 0).sum()) for row in range(held.shape[0]))
    return msgspec.structs.replace(segment, append_index=tuple(index), cache_token_count=counts)
