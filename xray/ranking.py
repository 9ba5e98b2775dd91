"""The ranking report of a case: first tokens, margins and what both sides have among the first K.

Both sides run the same forced tokens, so a position is compared on one causal history. With a
replay of the subject, its decode steps are compared with a prefill of all that came before.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cke.runtime.trace_reader import TraceFolder
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.ranking_report import RankedPosition, RankingCheck, RankingReport
from cke.schemas.trace import Record, Segment
from cke.xray.case import Case
from cke.xray.rows import badge_of
from cke.xray.streams import TILE, opened
from cke.xray.tiles import tiles

K = 5
Array = NDArray[Any]
Place = tuple[int, int]


def ranking_report(case: Case, report: Diagnosis) -> RankingReport | None:
    """Return the report of the logits that were captured, None without any."""
    checks = [check for pair in case.pairs for check in checks_of(*pair)]
    first: dict[tuple[str, int], RankingCheck] = {}
    for check in (*checks, *persistent_checks(case)):
        first.setdefault((check.check, check.segment), check)
    if not first:
        return None
    found = report.first_divergence
    flips = (
        (check.segment, item.row, item.column)
        for check in sorted(first.values(), key=lambda item: item.segment)
        for item in check.positions
        if not item.agrees
    )
    return RankingReport(
        banner=report.banner,
        subject=report.subject,
        oracle=report.oracle,
        k=K,
        checks=tuple(first.values()),
        first_flip=next(flips, None),
        first_divergent_edge=None if found is None else found.checkpoint_id,
        fix_owner=None if found is None else found.fix_owner,
    )


def checks_of(mine: TraceFolder, theirs: TraceFolder) -> Iterator[RankingCheck]:
    """Yield one check for every forward whose logits both sides captured with their values."""
    others = {r.segment: r for r in theirs.trace.body.records if r.checkpoint_id == "logits"}
    for record in mine.trace.body.records:
        other = others.get(record.segment)
        if record.checkpoint_id != "logits" or other is None or record.shape != other.shape:
            continue
        if None in (record.tensor_path, other.tensor_path):
            continue
        segment = mine.trace.body.segments[record.segment]
        kind = "teacher_forced" if segment.phase == "decode" else "mixed_prefill"
        yield _check(kind, segment, list(_positions(segment, mine, record, theirs, other)))


def persistent_checks(case: Case) -> Iterator[RankingCheck]:
    """Yield one check for every decode step that a full replay of the subject stands beside."""
    if case.replayed is None or not case.pairs:
        return
    mine, whole = case.pairs[0][0], case.replayed
    logits = {r.segment: r for r in mine.trace.body.records if r.checkpoint_id == "logits"}
    full = next(r for r in whole.trace.body.records if r.checkpoint_id == "logits")
    for segment in mine.trace.body.segments:
        record = logits.get(segment.index)
        if segment.phase != "decode" or record is None:
            continue
        with opened(mine, record) as (left,), opened(whole, full) as (right,):
            ours = left.flat(0, int(np.prod(record.shape))).reshape(record.shape)
            size = int(np.prod(full.shape))
            theirs = right.flat(0, size).reshape(full.shape)
        rows = [
            _ranked((row, 0), segment, ours[row, 0], theirs[row, segment.append_index[row]])
            for row in range(record.shape[0])
            if segment.positions[row][0] >= 0
        ]
        yield _check("persistent_vs_replay", segment, rows)


def _check(kind: Any, segment: Segment, positions: list[RankedPosition]) -> RankingCheck:
    margins = [item.oracle_margin for item in positions if item.oracle_margin is not None]
    overlap = sum(item.overlap for item in positions) / len(positions) if positions else None
    return RankingCheck(
        check=kind,
        segment=segment.index,
        phase=badge_of(segment),
        positions=tuple(positions),
        agreeing=sum(item.agrees for item in positions),
        least_margin=min(margins, default=None),
        mean_overlap=overlap,
    )


def _positions(
    segment: Segment, mine: TraceFolder, record: Record, theirs: TraceFolder, other: Record
) -> Iterable[RankedPosition]:
    with opened(mine, record) as (left,), opened(theirs, other) as (right,):
        for tile in tiles(record.shape, TILE, whole=len(record.shape) - 1):
            ours, wanted = left.tile(tile), right.tile(tile)
            for at in np.ndindex(ours.shape[:-1]):
                row, column = tile[0].start + at[0], tile[1].start + at[1]
                if segment.positions[row][column] >= 0:
                    yield _ranked((row, column), segment, ours[at], wanted[at])


def _ranked(at: Place, segment: Segment, ours: Array, wanted: Array) -> RankedPosition:
    ours, wanted = ours.astype(np.float64), wanted.astype(np.float64)
    left, right = int(ours.argmax()), int(wanted.argmax())
    tie = wanted[left] == wanted[right] or ours[right] == ours[left]
    k = min(K, ours.size)
    both = set(np.argpartition(-ours, k - 1)[:k]) & set(np.argpartition(-wanted, k - 1)[:k])
    return RankedPosition(
        row=at[0],
        column=at[1],
        position=segment.positions[at[0]][at[1]],
        subject_first=left,
        oracle_first=right,
        agrees=bool(left == right or tie),
        subject_margin=_margin(ours),
        oracle_margin=_margin(wanted),
        overlap=len(both),
        max_abs=_finite(np.abs(ours - wanted).max()),
    )


def _margin(logits: Array) -> float | None:
    if logits.size < 2:
        return None
    second, first = np.partition(logits, -2)[-2:]
    return _finite(first - second)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
