"""The first token that each side chooses, at every position: where the two differ is a flip."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cke.runtime.trace_reader import TraceFolder
from cke.schemas.numerical_report import Ranking
from cke.schemas.trace import Record
from cke.xray.streams import TILE, opened
from cke.xray.summaries import same_bytes
from cke.xray.tiles import tiles

Key = tuple[int, str, str | None]


def record_key(record: Record) -> Key:
    """Return what a record is joined by."""
    return record.segment, record.checkpoint_id, record.role


def rankings_of(subject: TraceFolder, oracle: TraceFolder) -> Iterable[Ranking]:
    """Yield, for each forward with logits on both sides, where their first tokens differ."""
    theirs = {record_key(r): r for r in oracle.trace.body.records if r.checkpoint_id == "logits"}
    for record in subject.trace.body.records:
        other = theirs.get(record_key(record))
        if record.checkpoint_id != "logits" or other is None or record.shape != other.shape:
            continue
        segment = subject.trace.body.segments[record.segment]
        valid = np.array(segment.positions) >= 0
        if None not in (record.tensor_path, other.tensor_path):
            left, right = _first(subject, record), _first(oracle, other)
            differ = (left != right) & valid
            if differ.any():
                differ &= ~_is_first(oracle, other, left) & ~_is_first(subject, record, right)
            flips = tuple((int(b), int(t)) for b, t in np.argwhere(differ))
        elif same_bytes(record, other):
            flips = ()
        else:
            continue
        yield Ranking(
            check="mixed_prefill" if record.phase == "prefill" else "teacher_forced",
            segment=record.segment,
            positions=int(valid.sum()),
            agreeing=int(valid.sum()) - len(flips),
            flips=flips,
        )


def _first(side: TraceFolder, record: Record) -> NDArray[np.int64]:
    """Return int[B, T]: the index of the largest logit."""
    result = np.zeros(record.shape[:-1], np.int64)
    with opened(side, record) as (stream,):
        for tile in tiles(record.shape, TILE, whole=len(record.shape) - 1):
            result[tile[:-1]] = stream.tile(tile).astype(np.float64).argmax(-1)
    return result


def _is_first(side: TraceFolder, record: Record, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[B, T]: whether a token's logit equals the largest, so that they are a tie."""
    result = np.zeros(chosen.shape, np.bool_)
    with opened(side, record) as (stream,):
        for tile in tiles(record.shape, TILE, whole=len(record.shape) - 1):
            logits = stream.tile(tile).astype(np.float64)
            index = chosen[tile[:-1]][..., None]
            result[tile[:-1]] = np.take_along_axis(logits, index, -1)[..., 0] == logits.max(-1)
    return result
