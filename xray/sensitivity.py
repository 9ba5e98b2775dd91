"""Attention sensitivity: what one authoritative attention makes of the subject's Q, K and V.

It runs the float64 definition on the oracle's operands, and again with the subject's in place of
some. It explains an error; no verdict is read from it.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cke.schemas.attention_sensitivity import Ablation, AttentionRow, SensitivityReport, Skipped
from cke.schemas.graph_ir import Op
from cke.schemas.numerical_report import Row
from cke.xray.case import Case
from cke.xray.graph import ProgramGraph, Site
from cke.xray.local import Bench
from cke.xray.metrics import compare
from cke.xray.replay import NotReplayable, ReferenceReplayer

Array = NDArray[Any]
ABLATIONS = ("q", "k", "v", "qkv")
MOST_PRODUCTS = 4e8
"""Products of all replays of one report: what two cores do in a few seconds."""


def sensitivity_report(
    case: Case, rows: list[Row], subject: dict[str, Any], oracle: dict[str, Any]
) -> SensitivityReport | None:
    """Return the report of every attention whose operands both sides show; None without one."""
    found: list[AttentionRow] = []
    skipped: list[Skipped] = []
    bench = case.bench()
    spent = 0.0
    logits = {r.segment: _error(r) for r in rows if r.checkpoint_id == "logits"}
    for segment, step, op in _attentions(bench):
        graph = bench.graph(segment)
        name = f"{graph.step_key(step)}.{op.id}"
        operands = _operands(bench, graph, segment, step, op)
        if isinstance(operands, str):
            skipped.append(Skipped(op=name, segment=segment, reason=operands))
            continue
        spent += 5 * _products(operands)
        if spent > MOST_PRODUCTS:
            reason = f"more than {MOST_PRODUCTS:.0e} products in one report"
            skipped.append(Skipped(op=name, segment=segment, reason=reason))
            continue
        try:
            found.append(_row(bench, graph, segment, step, op, operands, logits.get(segment)))
        except NotReplayable as error:
            skipped.append(Skipped(op=name, segment=segment, reason=f"{error} is not at hand"))
    if not found:
        return None
    return SensitivityReport(
        subject=subject, oracle=oracle, rows=tuple(found), skipped=tuple(skipped)
    )


def _attentions(bench: Bench) -> Iterator[tuple[int, int, Op]]:
    for segment in range(len(bench.subject.segments)):
        for step, op in bench.graph(segment).ops():
            if op.operator == "sdpa":
                yield segment, step, op


Operands = dict[str, tuple[Site, Array, Array]]


def _operands(bench: Bench, graph: ProgramGraph, segment: int, step: int, op: Op) -> Operands | str:
    """Return site, subject's and oracle's value of q, k and v, or what is missing of them."""
    found: Operands = {}
    for name, edge in zip("qkv", op.inputs, strict=False):
        site = graph.origin(Site(step, edge or ""))
        mine = bench.subject.value(graph, segment, site)
        theirs = bench.oracle.value(graph, segment, site)
        if mine is None or theirs is None:
            side = "subject" if mine is None else "oracle"
            return f"`{name}` was not captured of the {side}"
        if mine.shape != theirs.shape:
            return f"`{name}` has another shape on each side"
        valid = bench.valid(segment, site)
        if valid is not None:
            mine, theirs = (np.where(valid, array, array.dtype.type(0)) for array in (mine, theirs))
        found[name] = (site, mine, theirs)
    return found


def _products(operands: Operands) -> float:
    queries, keys = operands["q"][1], operands["k"][1]
    return float(2 * math.prod(queries.shape) * keys.shape[1])


def _row(
    bench: Bench,
    graph: ProgramGraph,
    segment: int,
    step: int,
    op: Op,
    operands: Operands,
    logits: float | None,
) -> AttentionRow:
    site = Site(step, op.results[-1].name)
    axes = graph.edge(site).type.axes
    valid = bench.valid(segment, site)

    def run(names: str) -> Array:
        given = {at: mine if n in names else theirs for n, (at, mine, theirs) in operands.items()}
        replayer = ReferenceReplayer(graph, bench.oracle, bench.weights, segment, given=given)
        return replayer.result(site)

    base = run("")
    shown = bench.oracle.value(graph, segment, site)
    mine = bench.subject.value(graph, segment, site)
    actual = None
    if shown is not None and mine is not None and mine.shape == shown.shape:
        actual = compare(mine, shown, axes, valid).relative_rmse
    return AttentionRow(
        checkpoint_id=graph.points_of(site)[-1].checkpoint_id,
        layer=graph.steps[step].layer,
        segment=segment,
        phase=graph.phase,
        op=op.id,
        authority_error=None
        if shown is None or shown.shape != base.shape
        else compare(base, shown, axes, valid).relative_rmse,
        ablations=tuple(
            _ablation(names, operands, compare(run(names), base, axes, valid))
            for names in ABLATIONS
        ),
        to_logits=_ratio(logits, actual),
    )


def _ablation(names: str, operands: Operands, metrics: Any) -> Ablation:
    given = _given_error([operands[name][1:] for name in names])
    return Ablation(
        operands=names,
        input_error=given,
        output_error=metrics.relative_rmse,
        output_max_abs=metrics.max_abs,
        amplification=_ratio(metrics.relative_rmse, given),
    )


def _given_error(pairs: Iterable[tuple[Array, Array]]) -> float | None:
    """Return the relative RMSE over all the operands that are exchanged."""
    off = norm = 0.0
    for mine, theirs in pairs:
        left, right = mine.astype(np.float64), theirs.astype(np.float64)
        off += float(np.square(left - right).sum())
        norm += float(np.square(right).sum())
    if not norm or not math.isfinite(off) or not math.isfinite(norm):
        return None
    return math.sqrt(off / norm)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _error(row: Row) -> float | None:
    return None if row.metrics is None else row.metrics.relative_rmse
