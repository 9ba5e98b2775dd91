"""The state report of a case: schedule and cache, in the order in which a fault is looked for.

What the schedule says is compared between the sides; what a cache holds is first checked within
the subject, bit for bit: rows appended now are the rows given, rows cached before are unchanged.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import digest
from cke.schemas.numerical_report import Row
from cke.schemas.state_report import StateForward, StateName, StateReport, StateStage
from cke.schemas.trace import Body, Record, Segment
from cke.xray.case import Case
from cke.xray.diff import OVER

STAGES: tuple[StateName, ...] = get_args(StateName)
Array = NDArray[Any]
APPEND = "kv_append"


class Fault(NamedTuple):
    """What does not hold: in words, and where."""

    detail: str
    segment: int | None = None
    checkpoint_id: str | None = None
    role: str | None = None


class Looked(NamedTuple):
    """The result of one stage: how many facts, and the first fault."""

    checked: int
    fault: Fault | None


def state_report(case: Case, bodies: tuple[Body, Body], rows: list[Row]) -> StateReport:
    """Return the stages of a case, from its first round's schedule and all that it captured."""
    mine, theirs = bodies
    looked = {name: _LOOK[name](case, mine, theirs, rows) for name in STAGES}
    stages = _ordered(looked)
    return StateReport(
        subject={"name": mine.producer.name, "dtype": mine.producer.dtype},
        oracle={"name": theirs.producer.name, "dtype": theirs.producer.dtype},
        stages=stages,
        first_broken=next((stage.name for stage in stages if stage.state == "broken"), None),
        subject_forwards=tuple(map(_forward, mine.segments)),
        oracle_forwards=tuple(map(_forward, theirs.segments)),
        subject_cache=mine.cache_layout,
        oracle_cache=theirs.cache_layout,
    )


def _ordered(looked: dict[StateName, Looked]) -> tuple[StateStage, ...]:
    """Return the stages with their states: the first fault breaks, those after it are poisoned."""
    found: list[StateStage] = []
    broken = False
    for name, (checked, fault) in looked.items():
        state: Any = "passed" if checked else "not_reached"
        if fault is not None:
            state = "poisoned" if broken else "broken"
            broken = True
        found.append(
            StateStage(
                name=name,
                state=state,
                checked=checked,
                detail="" if fault is None else fault.detail,
                checkpoint_id=None if fault is None else fault.checkpoint_id,
                role=None if fault is None else fault.role,
                segment=None if fault is None else fault.segment,
            )
        )
    return tuple(found)


def _forward(segment: Segment) -> StateForward:
    return StateForward(
        index=segment.index,
        phase=segment.phase,
        columns=len(segment.tokens[0]),
        first_positions=tuple(row[0] for row in segment.positions),
        cache_action=segment.cache_action,
        append_index=segment.append_index,
        cache_token_count=segment.cache_token_count,
    )


def _segmentation(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
    left, right = (
        [(s.phase, len(s.tokens[0]), s.cache_action) for s in body.segments]
        for body in (mine, theirs)
    )
    fault = None if left == right else Fault(f"subject {left}, oracle {right}")
    return Looked(len(left), fault)


def _field(name: str) -> Callable[..., Looked]:
    def look(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
        pairs = list(zip(mine.segments, theirs.segments, strict=False))
        for left, right in pairs:
            if getattr(left, name) != getattr(right, name):
                text = f"subject {getattr(left, name)}, oracle {getattr(right, name)}"
                return Looked(len(pairs), Fault(text, left.index))
        return Looked(len(pairs), None)

    return look


def _layout(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
    left, right = mine.cache_layout, theirs.cache_layout
    if left is None or right is None or left.layout_id != right.layout_id:
        return Looked(0, None)
    return Looked(1, None if left == right else Fault(f"subject {left}, oracle {right}"))


def _compared(wanted: Callable[[Row], bool]) -> Callable[..., Looked]:
    def look(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
        chosen = [row for row in rows if wanted(row)]
        over = next((row for row in chosen if row.status in OVER), None)
        if over is None:
            return Looked(len(chosen), None)
        text = "outside its budget"
        if over.metrics is not None and over.metrics.relative_rmse is not None:
            text += f": relative RMSE {over.metrics.relative_rmse:.3g}"
        return Looked(len(chosen), Fault(text, over.segment, over.checkpoint_id, over.role))

    return look


def _given(row: Row) -> bool:
    return row.checkpoint_id.endswith(APPEND) and (row.role or "").startswith("new_")


def _stored(row: Row) -> bool:
    return row.checkpoint_id.endswith(APPEND) and (row.role or "").startswith("stored_")


def _context(row: Row) -> bool:
    return row.checkpoint_id.endswith("attention_context")


def _round_trip(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
    checked = 0
    for stored, new, segment, record in _appends(case):
        for row, start in enumerate(segment.append_index):
            count = segment.cache_token_count[row] - start
            kept = stored[row, start : start + count]
            given = new[row][np.asarray(segment.positions[row]) >= 0]
            checked += 1
            if kept.shape != given.shape or kept.tobytes() != given.tobytes():
                text = f"rows {start} to {start + count - 1} of sequence {row} are not those given"
                return Looked(checked, Fault(text, segment.index, *_key(record)))
    return Looked(checked, None)


def _previous(case: Case, mine: Body, theirs: Body, rows: list[Row]) -> Looked:
    checked = 0
    before: dict[tuple[str, str | None], Array] = {}
    for stored, _, segment, record in _appends(case):
        earlier = before.get(_key(record))
        before[_key(record)] = stored
        if earlier is None or segment.cache_action != "append":
            continue
        for row, count in enumerate(segment.append_index):
            checked += 1
            if stored[row, :count].tobytes() != earlier[row, :count].tobytes():
                text = f"a row of sequence {row} that was cached before has changed"
                return Looked(checked, Fault(text, segment.index, *_key(record)))
    return Looked(checked, None)


def _key(record: Record) -> tuple[str, str | None]:
    return record.checkpoint_id, record.role


def _appends(case: Case) -> Iterator[tuple[Array, Array, Segment, Record]]:
    """Yield what the subject stored with what it was given, in the order of its forwards."""
    found: dict[tuple[int, str, str | None], tuple[Any, Record]] = {}
    for mine, _ in case.pairs:
        for record in mine.trace.body.records:
            if record.checkpoint_id.endswith(APPEND) and record.tensor_path is not None:
                found.setdefault((record.segment, *_key(record)), (mine, record))
    for (segment, name, role), (folder, record) in sorted(found.items(), key=lambda i: i[0][0]):
        if role is None or not role.startswith("stored_"):
            continue
        given = found.get((segment, name, role.replace("stored_", "new_", 1)))
        if given is not None:
            schedule = folder.trace.body.segments[segment]
            new = given[0].array(given[1], digest)
            yield folder.array(record, digest), new, schedule, record


_LOOK: dict[StateName, Callable[..., Looked]] = {
    "segmentation": _segmentation,
    "positions": _field("positions"),
    "append_index": _field("append_index"),
    "cache_token_count": _field("cache_token_count"),
    "cache_layout": _layout,
    "append_source": _compared(_given),
    "round_trip": _round_trip,
    "previous_rows": _previous,
    "valid_rows": _compared(_stored),
    "attention": _compared(_context),
}
