"""Where a forward wrote to its cache, read from the cache itself: a trace states what was done."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from cke.schemas.trace import Segment


def as_written(segment: Segment, state: Mapping[str, Mapping[str, Any]]) -> Segment:
    """Return the segment with the append index and token count that the first cache shows.

    A row whose first position is nowhere in the cache has index -1. Without a cache the plan
    stands.
    """
    for slots in state.values():
        for slot in slots.values():
            if isinstance(slot, Mapping) and "positions" in slot and "count" in slot:
                return _measured(segment, np.asarray(slot["positions"]), np.asarray(slot["count"]))
    return segment


def _measured(segment: Segment, held: np.ndarray, counts: np.ndarray) -> Segment:
    index: list[int] = []
    for row, (positions, planned) in enumerate(
        zip(segment.positions, segment.append_index, strict=True)
    ):
        fed = [position for position in positions if position >= 0]
        if not fed:
            index.append(planned)
            continue
        places = np.flatnonzero(held[row] == fed[0])
        index.append(int(places[-1]) if places.size else -1)
    return msgspec.structs.replace(
        segment,
        append_index=tuple(index),
        cache_token_count=tuple(int(count) for count in counts),
    )
