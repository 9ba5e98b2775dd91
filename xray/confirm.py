"""Confirmation: every counterfactual is replayed on the oracle's inputs; which closes the gap?

One that does is the explanation. Several that describe different changes, or none, leave the
question open, and the report says so (XRAY-19, XRAY-20).
"""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from cke.schemas.diagnosis import Counterfactual
from cke.schemas.graph_ir import Op
from cke.xray.candidates import RANK, Candidate, candidates
from cke.xray.diff import OVER, status_of
from cke.xray.graph import Site
from cke.xray.local import Bench, Judged
from cke.xray.metrics import compare
from cke.xray.missing import coefficients, fitted, insertions, lost_ropes, lost_sums
from cke.xray.replay import REPLAY_ERRORS
from cke.xray.rewired import later_edges, lost_activations, regrouped, ropes_before_a_cache

NEAR = 8.0
SAME = 1e-12


class Tried(msgspec.Struct, frozen=True):
    """A candidate, the op it changes, and how far the edge is from the oracle with it."""

    candidate: Candidate
    op: Op
    error: float
    closes: bool


class Outcome(msgspec.Struct, frozen=True):
    """Changes that close the gap, best first, and how many were tried."""

    closing: tuple[tuple[Counterfactual, Op, int], ...]
    tried: int
    same: tuple[Counterfactual, ...] = ()

    @property
    def confirmed(self) -> tuple[Counterfactual, Op, int] | None:
        """The one explanation; None when there is none, or more than one."""
        return self.closing[0] if len(self.closing) == 1 else None


def confirm(bench: Bench, judged: Judged) -> Outcome:
    """Replay every candidate of every op between the captured inputs and the edge."""
    tried: list[Tried] = []
    for step, op in judged.cone:
        for candidate in _all(bench, judged, step, op):
            found = _try(bench, judged, op, candidate)
            if found is not None:
                tried.append(found)
    count = len(tried)
    closing = [item for item in tried if item.closes]
    for further in (_fits, _rewired):
        if closing:
            break
        for step, op in judged.cone:
            for candidate in further(bench, judged, step, op):
                found = _try(bench, judged, op, candidate)
                count += 1
                if found is not None and found.closes:
                    closing.append(found)
    kept = _distinct(_elsewhere(bench, judged, _siblings(bench, judged, closing)))
    before = judged.replay.reference_against_oracle.relative_rmse
    kept, same = _equivalent(bench, judged, kept)
    return Outcome(
        tuple((_shown(item, before), item.op, item.candidate.change.step) for item in kept),
        count,
        tuple(_shown(item, before) for item in same),
    )


def _equivalent(bench: Bench, judged: Judged, kept: list[Tried]) -> tuple[list[Tried], list[Tried]]:
    """Return one of several changes to an operator that give the same numbers, and the others.

    Changes that are one function (softmax of the chosen logits, renormalised softmax of all)
    cannot be told apart by any input, and need not be. Nor can two that only move values: the parts
    of a split exchanged, or the operands of what reads them. Those agree in every bit.
    """
    one_operator = all(item.op.operator == kept[0].op.operator for item in kept)
    moves = all(item.candidate.kind == "operand" for item in kept)
    if len(kept) < 2 or not (one_operator or moves):
        return kept, []
    results = [
        bench.reference(judged.segment, judged.site, item.candidate.change).result(judged.site)
        for item in kept
    ]
    scale = float(np.abs(results[0]).max(initial=0.0)) if one_operator else 0.0
    if all(np.allclose(results[0], other, rtol=0, atol=SAME * scale) for other in results[1:]):
        return kept[:1], kept[1:]
    return kept, []


def _all(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    graph = bench.graph(judged.segment)
    yield from candidates(graph, step, op, bench.constants)
    if op.id == judged.op.id:
        index = next(
            i for i, edge in enumerate(op.results) if edge.name == graph.origin(judged.site).edge
        )
        yield from insertions(
            step, op, judged.reference, judged.oracle, judged.valid, bench.constants, index
        )
        axes = graph.edge(judged.site).type.axes
        if op.operator != "rope" and len(axes) == 4 and axes[:2] == ("B", "T"):
            fed = np.asarray(bench.oracle.segments[judged.segment].positions, np.int32)
            width = judged.oracle.shape[-1]
            yield from lost_ropes(step, op, index, fed, width, bench.constants)
        yield from lost_sums(graph, step, op, index, _alike(bench, judged, step, op))
        operands = [
            bench.oracle.value(graph, judged.segment, Site(step, name))
            for name in op.inputs
            if name and graph.is_edge(step, name)
        ]
        if len(operands) == 2 and all(
            item is not None and item.shape == judged.oracle.shape for item in operands
        ):
            yield from coefficients(
                step,
                op,
                [item for item in operands if item is not None],
                judged.oracle,
                bench.constants,
            )


def _alike(bench: Bench, judged: Judged, step: int, op: Op) -> dict[str, Any]:
    """Return the captured values of the block before an op that have the form of its result."""
    graph = bench.graph(judged.segment)
    function = graph.function(step)
    names = [parameter.name for parameter in function.parameters]
    for other in function.ops:
        if other.id == op.id:
            break
        names += [edge.name for edge in other.results]
    found: dict[str, Any] = {}
    for name in names:
        value = bench.oracle.value(graph, judged.segment, Site(step, name))
        if value is not None and value.shape == judged.oracle.shape and value.dtype.kind != "i":
            found[name] = np.asarray(value, np.float64)
    return found


def _fits(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    def error(candidate: Candidate) -> float | None:
        found = _try(bench, judged, op, candidate)
        return None if found is None else found.error

    yield from fitted(bench.graph(judged.segment), step, op, error, bench.constants)


def _rewired(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    yield from lost_activations(step, op)
    yield from regrouped(bench, judged, step, op)
    yield from ropes_before_a_cache(bench, judged, step, op)
    yield from later_edges(bench, judged, step, op)


def _try(
    bench: Bench, judged: Judged, op: Op, candidate: Candidate, segment: int | None = None
) -> Tried | None:
    at = judged.segment if segment is None else segment
    graph = bench.graph(at)
    try:
        made = bench.reference(at, judged.site, candidate.change).result(judged.site)
        wanted = judged.oracle if segment is None else _there(bench, judged, at)
        if wanted is None or made.shape != wanted.shape:
            return None
        valid = judged.valid if segment is None else bench.valid(at, judged.site)
        metrics = compare(np.asarray(made), wanted, graph.edge(judged.site).type.axes, valid)
    except REPLAY_ERRORS:
        return None
    error = metrics.relative_rmse
    if error is None:
        return None
    closes = status_of(metrics, judged.replay.gate) not in OVER
    return Tried(candidate, op, error, closes)


def _there(bench: Bench, judged: Judged, segment: int) -> Any:
    """Return what the oracle shows in another forward, at the same checkpoint."""
    graph = bench.graph(segment)
    for record in bench.oracle.records(graph, segment, judged.site):
        if (record.checkpoint_id, record.role) == (judged.record.checkpoint_id, judged.record.role):
            return bench.oracle.shown(graph, segment, graph.origin(judged.site), record)
    return None


def _siblings(bench: Bench, judged: Judged, closing: list[Tried]) -> list[Tried]:
    """Return those under which the op's other results agree as well, if there are any."""
    graph = bench.graph(judged.segment)
    step = graph.origin(judged.site).step
    others = [Site(step, edge.name) for edge in judged.op.results]
    others = [site for site in others if site != graph.origin(judged.site)]
    whole = [
        item
        for item in closing
        if all(_agrees(bench, judged, site, item.candidate) is not False for site in others)
    ]
    return whole or closing


def _agrees(bench: Bench, judged: Judged, site: Site, candidate: Candidate) -> bool | None:
    """Return whether another result agrees under a change; None when nothing can be said."""
    graph = bench.graph(judged.segment)
    wanted = bench.oracle.value(graph, judged.segment, site)
    if wanted is None:
        return None
    try:
        made = bench.reference(judged.segment, site, candidate.change).result(site)
        axes = graph.edge(site).type.axes
        metrics = compare(np.asarray(made), wanted, axes, bench.valid(judged.segment, site))
    except REPLAY_ERRORS:
        return None
    return status_of(metrics, judged.replay.gate) not in OVER


def _elsewhere(bench: Bench, judged: Judged, closing: list[Tried]) -> list[Tried]:
    """Return those that close the gap in the other forwards of the same phase as well."""
    others = [
        index
        for index in range(len(bench.subject.segments))
        if index != judged.segment and bench.graph(index).phase == bench.graph(judged.segment).phase
    ]
    kept = list(closing)
    for index in others[:3]:
        if len(kept) < 2:
            break
        passed = [
            item
            for item in kept
            if (found := _try(bench, judged, item.op, item.candidate, index)) is None
            or found.closes
        ]
        kept = passed or kept
    return kept


def _distinct(closing: list[Tried]) -> list[Tried]:
    """Return one per explanation: the most specific kind, the nearest value of an attribute.

    Of one kind, a value that is replaced is more specific than one that is added.
    """
    if not closing:
        return []
    best = min(item.error for item in closing)
    near = [item for item in closing if item.error <= NEAR * best + 1e-12]
    kinds = {item.candidate.kind for item in near}
    kind = min(kinds, key=RANK.index)
    chosen = [item for item in near if item.candidate.kind == kind]
    chosen = [item for item in chosen if item.candidate.old is not None] or chosen
    found: dict[tuple[str, str], Tried] = {}
    for item in sorted(chosen, key=lambda item: (_order(item.candidate), item.error)):
        found.setdefault((item.op.id, item.candidate.what), item)
    return list(found.values())


def _order(candidate: Candidate) -> int:
    """Return the rank of an origin: neutral values and declared ones before those of the config."""
    origins = ("neutral", "declared", "config")
    return next((i for i, name in enumerate(origins) if candidate.origin.startswith(name)), 3)


def _shown(item: Tried, before: float | None) -> Counterfactual:
    candidate = item.candidate
    return Counterfactual(
        op=item.op.id,
        kind=candidate.kind,
        what=candidate.what,
        old=_plain(candidate.old),
        new=_plain(candidate.new),
        origin=candidate.origin,
        before=before if before is not None and math.isfinite(before) else 0.0,
        after=item.error,
        closes=item.closes,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value
