"""Compare two traces checkpoint by checkpoint, in graph order, and mark the drift curve.

Goal: the table that every diagnosis starts from. Non-goal: a diagnosis. One pair of tensors is
open at a time and read in tiles, so memory grows neither with the traces nor with a tensor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.errors import Diagnostic, Note, RejectedError
from cke.runtime.trace_reader import TraceFolder
from cke.runtime.trace_writer import DOCUMENT
from cke.schemas.numerical_report import (
    Conservation,
    Coverage,
    Curve,
    Gate,
    Metrics,
    Ranking,
    Report,
    Row,
    RowStatus,
    Verdict,
)
from cke.schemas.trace import Record
from cke.xray.budget import forward_error
from cke.xray.conservation import check_conservation
from cke.xray.first_tokens import Key, rankings_of, record_key
from cke.xray.metrics import Block, compare_blocks, mask_of
from cke.xray.profile import narrowed
from cke.xray.streams import TILE, TensorStream, opened
from cke.xray.summaries import (
    comparable,
    exact_metrics,
    oracle_scale,
    same_bytes,
    side_by_side,
    status_of_summaries,
)
from cke.xray.tiles import flat_start, tiles
from cke.xray.validity import valid_elements

JUMP = 3.0
HELP = "capture fewer edges at a time with `--edges`; the trace holds what was neutral alone"
OVER = ("over", "nonfinite", "summary_over")
NEVER_SUMMED = ("B", "T", "V")
Pair = tuple[Record | None, Record | None]
Progress = Callable[[int, int], None]
LayersBefore = Callable[[Record], int | None]


def diff_traces(
    subject: TraceFolder,
    oracle: TraceFolder,
    progress: Progress = lambda done, total: None,
    layers_before: LayersBefore = lambda record: None,
) -> Report:
    """Return the numerical report; both traces must hold the same tokens and schedule.

    `layers_before` says how many layers a checkpoint outside the layers comes after, where the
    traces hold a part of the edges and do not show it.

    Metadata of every row is compared before the first tensor is opened. A side whose captures
    changed a bit is no evidence and is refused (CKE724).
    """
    for side in (subject, oracle):
        check_neutral(side)
    pairs = _pairs(subject, oracle)
    rows: list[Row] = []
    depth, longest = 0, 1
    for stop, pair in enumerate(pairs):
        depth = _depth(pair, depth, layers_before)
        rows.append(_row(stop, pair, (depth, longest), subject, oracle))
        longest = _longest(pair, longest)
        progress(stop + 1, len(pairs))
    rankings = tuple(rankings_of(subject, oracle))
    flip = next(((r.segment, *r.flips[0]) for r in rankings if r.flips), None)
    compared = [row for row in rows if row.metrics is not None]
    encoder = all(item.phase == "encode" for item in subject.trace.body.segments)
    verdict, status = _verdict(rows, rankings, encoder)
    body = oracle.trace.body
    return Report(
        verdict=verdict,
        status=status,
        banner=_banner(compared, body.producer.name, subject),
        backend=body.producer.name,
        backend_version=body.producer.version,
        subject=_identity(subject),
        oracle=_identity(oracle),
        coverage=_coverage(rows, subject, oracle),
        rows=tuple(rows),
        byte_exact_prefix=_prefix(compared),
        first_non_exact=next((r.stop for r in compared if not _exact(r)), None),
        first_over_gate=next((r.stop for r in rows if r.status in OVER), None),
        curves=tuple(curve(compared, metric) for metric in ("max_abs", "rmse")),
        conservation=tuple(_conservation(subject, oracle)),
        rankings=rankings,
        first_flip=flip,
    )


def check_neutral(side: TraceFolder) -> None:
    """Raise RejectedError when the gate let nothing of the trace through."""
    status = side.trace.body.neutrality.status
    if status in ("rejected", "evidence_program"):
        raise RejectedError(
            Diagnostic(
                code="CKE724",
                file=f"{side.folder.name}/{DOCUMENT}",
                path="$.body.neutrality.status",
                message=f"expected captures that changed no bit, got `{status}`",
                notes=(Note(HELP, label="help"),),
            )
        )


def _pairs(subject: TraceFolder, oracle: TraceFolder) -> list[Pair]:
    theirs = {record_key(record): record for record in oracle.trace.body.records}
    ordered = sorted(
        subject.trace.body.records,
        key=lambda r: (r.segment, r.order if r.order is not None else 0),
    )
    pairs: list[Pair] = []
    used: set[Key] = set()
    for record in ordered:
        key = record_key(record)
        if key not in theirs and record.alias_of is not None:
            key = (record.segment, record.alias_of, None)
        used.add(key)
        pairs.append((record, theirs.get(key)))
    return pairs + [(None, record) for key, record in theirs.items() if key not in used]


def _depth(pair: Pair, before: int, layers_before: LayersBefore) -> int:
    """Return the layers passed at a stop: what follows the last layer has passed all of them."""
    shown = pair[0] or pair[1]
    assert shown is not None, "a pair has a side"
    if shown.layer is not None:
        return shown.layer + 1
    known = layers_before(shown)
    if known is not None:
        return known
    return 0 if shown.checkpoint_id == "embedding" else before


def _longest(pair: Pair, before: int) -> int:
    """Return the longest sum of what follows a stop: over a width, or over keys."""
    shown = pair[0] or pair[1]
    assert shown is not None, "a pair has a side"
    sizes = zip(shown.axes, shown.shape, strict=True)
    return max([before, *(size for axis, size in sizes if axis not in NEVER_SUMMED)])


def _row(
    stop: int, pair: Pair, passed: tuple[int, int], subject: TraceFolder, oracle: TraceFolder
) -> Row:
    mine, theirs = pair
    shown = mine or theirs
    assert shown is not None, "a pair has a side"
    status: RowStatus = "subject_only" if theirs is None else "oracle_only"
    metrics: Metrics | None = None
    gate: Gate | None = None
    detail: str | None = None
    if mine is not None and theirs is not None:
        detail = layout_fault(mine, theirs)
        status = "layout"
        if detail is None and None in (mine.tensor_path, theirs.tensor_path):
            status, metrics, gate, detail = _summary_row(mine, theirs, subject, oracle, passed)
        elif detail is None:
            metrics = measure(mine, theirs, subject, oracle)
            gate = gate_of(mine, theirs, metrics, passed, oracle)
            status = status_of(metrics, gate)
    return Row(
        stop=stop,
        checkpoint_id=shown.checkpoint_id,
        role=shown.role,
        layer=shown.layer,
        segment=shown.segment,
        phase=shown.phase,
        status=status,
        kernel_id=mine.kernel_id if mine else None,
        contract_id=mine.numerical_contract_id if mine else None,
        subject_dtype=mine.dtype if mine else None,
        oracle_dtype=theirs.dtype if theirs else None,
        derivation=theirs.derivation if theirs else None,
        metrics=metrics,
        gate=gate,
        detail=detail,
    )


def layout_fault(mine: Record, theirs: Record) -> str | None:
    """Return why no permutation of named axes reconciles the two records, or None."""
    if sorted(mine.axes) != sorted(theirs.axes):
        return f"axes {list(mine.axes)} and {list(theirs.axes)}"
    theirs_sizes = dict(zip(theirs.axes, theirs.shape, strict=True))
    sizes = tuple(theirs_sizes[name] for name in mine.axes)
    if sizes != mine.shape:
        return f"shape {list(mine.shape)} and {list(sizes)} over {list(mine.axes)}"
    return None


def _summary_row(
    mine: Record,
    theirs: Record,
    subject: TraceFolder,
    oracle: TraceFolder,
    passed: tuple[int, int],
) -> tuple[RowStatus, Metrics | None, Gate | None, str | None]:
    """Return a row of which a side keeps no values: exact by its digest, else what is proven."""
    if same_bytes(mine, theirs):
        metrics = exact_metrics(theirs)
        return "exact", metrics, gate_of(mine, theirs, metrics, passed, oracle), "equal digests"
    left, right = comparable(mine, theirs, subject, oracle)
    depth, longest = passed
    scale = oracle_scale(theirs, right, oracle)
    gate = forward_error(_dtypes(mine, theirs, oracle), longest, depth, *scale)
    return status_of_summaries(left, right, gate), None, gate, side_by_side(left, right)


def measure(mine: Record, theirs: Record, subject: TraceFolder, oracle: TraceFolder) -> Metrics:
    """Return the metrics of two records, read tile by tile.

    The oracle's axes are put in the subject's order.
    """
    segment = subject.trace.body.segments[mine.segment]
    valid = valid_elements(mine, segment)
    with opened(subject, mine) as (left,), opened(oracle, theirs) as (right,):
        return compare_blocks(_blocks(left, right, valid), mine.shape, mine.axes)


def _blocks(
    left: TensorStream, right: TensorStream, valid: NDArray[np.bool_] | None
) -> Iterable[Block]:
    mine, theirs = left.record, right.record
    order = tuple(theirs.axes.index(name) for name in mine.axes)
    straight = order == tuple(range(len(order)))
    for tile in tiles(mine.shape, TILE):
        yield Block(
            flat_start(tile, mine.shape),
            left.tile(tile).reshape(-1),
            (right.tile(tile) if straight else right.transposed(tile, order)).reshape(-1),
            mask_of(valid, tile),
        )


def gate_of(
    mine: Record, theirs: Record, metrics: Metrics, passed: tuple[int, int], oracle: TraceFolder
) -> Gate:
    """Return the budget of a row from dtypes, the layers passed and the longest sum so far."""
    depth, longest = passed
    rms = None
    if metrics.rmse is not None and metrics.relative_rmse:
        rms = metrics.rmse / metrics.relative_rmse
    dtypes = _dtypes(mine, theirs, oracle)
    return forward_error(dtypes, longest, depth, rms, metrics.oracle_max_abs)


def _dtypes(mine: Record, theirs: Record, oracle: TraceFolder) -> tuple[str, ...]:
    """Return what both sides store, and what the oracle's arithmetic narrowed on the way."""
    producer = oracle.trace.body.producer
    return mine.dtype, theirs.dtype, *narrowed(producer.name, producer.dtype, theirs.through)


def status_of(metrics: Metrics, gate: Gate) -> RowStatus:
    """Return the status of a measured row."""
    if metrics.mismatched_nonfinite:
        return "nonfinite"
    if metrics.exact_elements == metrics.total_elements:
        return "exact"
    relative = metrics.relative_rmse
    if relative is None:
        return "over" if metrics.max_abs else "exact"
    over = relative > gate.relative_rmse
    if gate.max_abs is not None and metrics.max_abs is not None:
        over = over or metrics.max_abs > gate.max_abs
    return "over" if over else "within"


def _exact(row: Row) -> bool:
    """Return whether the bytes are equal; between two dtypes, whether every value is."""
    if row.metrics is None:
        return False
    return row.metrics.byte_exact or (
        row.subject_dtype != row.oracle_dtype and row.status == "exact"
    )


def _prefix(rows: list[Row]) -> int:
    length = 0
    for row in rows:
        if not _exact(row):
            break
        length += 1
    return length


def curve(rows: list[Row], metric: str) -> Curve:
    """Return the jumps and the breaks of monotonicity of one metric, by stop."""
    jumps: list[int] = []
    breaks: list[int] = []
    before: float | None = None
    for row in rows:
        value: float | None = getattr(row.metrics, metric)
        if value is None:
            continue
        if before is not None and before > 0 and value > JUMP * before:
            jumps.append(row.stop)
        if before is not None and value < before:
            breaks.append(row.stop)
        before = value
    return Curve(metric=metric, jumps=tuple(jumps), monotonicity_breaks=tuple(breaks))


def _verdict(
    rows: list[Row], rankings: tuple[Ranking, ...], encoder: bool
) -> tuple[Verdict | None, Any]:
    """Return the verdict; a row that summaries leave open is missing evidence, never a pass."""
    compared = any(row.metrics is not None for row in rows)
    decided = compared and all(row.status != "summary" for row in rows)
    status = "complete" if decided and (rankings or encoder) else "incomplete"
    flips = any(ranking.flips for ranking in rankings)
    if status == "incomplete" and not flips:
        return None, status
    return verdict_of(flips, (row.status for row in rows)), status


def verdict_of(flips: bool, statuses: Iterable[str]) -> Verdict:
    """Return the verdict of what was compared; a flip outranks a table without a row over."""
    if flips:
        return "behavioral_divergence"
    over = any(status in OVER for status in statuses)
    return "cosmetic_drift" if over else "pass_within_gate"


def _banner(rows: list[Row], backend: str, subject: TraceFolder) -> str:
    within = sum(row.status in ("exact", "within") for row in rows)
    dtype = subject.trace.body.producer.dtype.upper().replace("F32", "FP32")
    tokens = subject.trace.body.identity.tokens_sha256[:8]
    threads = subject.trace.body.threads
    plural = "thread" if threads == 1 else "threads"
    name = {"pytorch": "PyTorch", "llamacpp": "llama.cpp"}.get(backend, backend)
    return (
        f"{within}/{len(rows)} edges within gate — {dtype} · {name} · fixture {tokens} · "
        f"{threads} {plural}"
    )


def _identity(side: TraceFolder) -> dict[str, Any]:
    body = side.trace.body
    return {
        "trace_sha256": side.trace.body_sha256,
        "producer": body.producer.name,
        "version": body.producer.version,
        "dtype": body.producer.dtype,
        "family": body.identity.family,
        "circuit": body.identity.circuit,
        "tokens_sha256": body.identity.tokens_sha256,
        "threads": body.threads,
        "neutrality": body.neutrality.status,
    }


def _coverage(rows: list[Row], subject: TraceFolder, oracle: TraceFolder) -> Coverage:
    compared = {(r.segment, r.checkpoint_id, r.role) for r in rows if r.metrics is not None}
    missing = dict.fromkeys(
        row.checkpoint_id
        for row in rows
        if row.status in ("subject_only", "layout", "summary", "summary_over")
    )
    return Coverage(
        compared=len(compared),
        subject_captured=len(subject.trace.body.records),
        oracle_captured=len(oracle.trace.body.records),
        edges_total=subject.trace.body.edges_total,
        not_compared=tuple(missing),
    )


def _conservation(subject: TraceFolder, oracle: TraceFolder) -> Iterable[Conservation]:
    for name, side in (("subject", subject), ("oracle", oracle)):
        for item in check_conservation(side):
            yield msgspec.structs.replace(item, side=name)
