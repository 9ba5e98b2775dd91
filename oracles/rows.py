"""Rows of unequal length: each is run alone, and what was captured is put side by side.

Padding is a matter of the harness, not of the model: running rows alone keeps an oracle's own
handling of padding out of the comparison. Rows are padded with zeros at the end of T and S.
"""

import msgspec
import numpy as np

from cke.oracles.base import Array, Sink
from cke.runtime.records import record_of, split_id
from cke.schemas.trace import Record, Segment

Key = tuple[str, str | None]
Row = dict[Key, tuple[Record, Array]]


class RowSink:
    """Keeps the captures of one row by segment."""

    def __init__(self) -> None:
        self.segments: dict[int, Row] = {}

    def add(self, record: Record, array: Array) -> None:
        """Keep one capture of the row; its B is 1."""
        row = self.segments.setdefault(record.segment, {})
        row[record.checkpoint_id, record.role] = (record, array)


def row_segment(segment: Segment, row: int) -> Segment | None:
    """Return the forward of one row without its padding, or None when the row has no token."""
    kept = [i for i, position in enumerate(segment.positions[row]) if position >= 0]
    if not kept:
        return None
    return msgspec.structs.replace(
        segment,
        tokens=(tuple(segment.tokens[row][i] for i in kept),),
        positions=(tuple(segment.positions[row][i] for i in kept),),
        append_index=(segment.append_index[row],),
        cache_token_count=(segment.cache_token_count[row],),
    )


def emit_rows(segments: tuple[Segment, ...], rows: list[RowSink], sink: Sink) -> None:
    """Give `sink` every capture of the segments, its rows stacked along B."""
    for segment in segments:
        captured = [row.segments.get(segment.index, {}) for row in rows]
        fullest = max(captured, key=len)
        for like, _ in fullest.values():
            array = _stacked(segment, [_held(row, segment, like) for row in rows], like)
            name, layer = split_id(like.checkpoint_id)
            record = record_of(
                array,
                name=name,
                layer=layer,
                phase=segment.phase,
                segment=segment.index,
                axes=like.axes,
                role=like.role,
                derivation=like.derivation,
                order=like.order,
            )
            told = {"computed": like.computed, "through": like.through}
            sink.add(msgspec.structs.replace(record, **told), array)


def _held(row: RowSink, segment: Segment, like: Record) -> tuple[Record, Array] | None:
    """Return a capture of the segment; what is made of the cache alone is that of the last one."""
    key = like.checkpoint_id, like.role
    cached = "S" in like.axes and "T" not in like.axes
    for index in range(segment.index, -1, -1):
        found = row.segments.get(index, {}).get(key)
        if found is not None or not cached:
            return found
    return None


def _stacked(segment: Segment, parts: list[tuple[Record, Array] | None], like: Record) -> Array:
    sizes = {"B": len(parts), "T": len(segment.tokens[0]), "S": max(segment.cache_token_count)}
    shape = tuple(sizes.get(name, size) for name, size in zip(like.axes, like.shape, strict=True))
    dtype = next(part[1].dtype for part in parts if part is not None)
    result = np.zeros(shape, dtype)
    at = like.axes.index("B")
    for row, part in enumerate(parts):
        if part is None:
            continue
        where: list[slice] = [slice(0, size) for size in part[1].shape]
        where[at] = slice(row, row + 1)
        result[tuple(where)] = part[1]
    return result
