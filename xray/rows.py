"""What a page shows beside the curve: forwards with their badges, and one row for every op."""

from collections.abc import Iterator
from typing import Any

from cke.schemas.diagnosis import CircuitRow, Forward
from cke.schemas.ir import Edge
from cke.schemas.numerical_report import Row
from cke.schemas.trace import Segment
from cke.xray.case import Case
from cke.xray.graph import ProgramGraph, Site


def badge_of(segment: Segment) -> Any:
    """Return the badge of a forward: decode of given tokens is teacher-forced."""
    if segment.phase != "decode":
        return "PREFILL"
    return "TEACHER_FORCED" if segment.teacher_forced else "DECODE"


def forwards_of(case: Case) -> tuple[Forward, ...]:
    """Return every forward that both sides ran."""
    if not case.pairs:
        return ()
    return tuple(
        Forward(
            index=segment.index,
            badge=badge_of(segment),
            columns=len(segment.tokens[0]),
            cache_action=segment.cache_action,
        )
        for segment in case.pairs[0][0].trace.body.segments
    )


def circuit_rows(case: Case, rows: list[Row]) -> tuple[CircuitRow, ...]:
    """Return one row for every op of every phase that ran, in execution order."""
    if not case.pairs:
        return ()
    ran: dict[str, dict[Site, list[Row]]] = {}
    for row in rows:
        graph = case.graph(row.segment)
        site = graph.site_of(row.checkpoint_id, row.role)
        shown = ran.setdefault(graph.phase, {})
        if site is not None:
            shown.setdefault(site, []).append(row)
    required = {
        (item.phase, item.function, op): item.contract_id
        for item in case.subject.manifest.resolutions
        for op in item.ops
    }
    loaded = _loaded(case)
    found: list[CircuitRow] = []
    for phase in ran:
        found += _phase(case.graphs[phase], ran[phase], required, loaded, len(found))
    return tuple(found)


def _loaded(case: Case) -> dict[tuple[str, int | None, str], str | None]:
    """Return the contract of the kernel that ran, by phase, layer and kernel."""
    return {
        (record.phase, record.layer, record.kernel_id): record.effective_contract_id
        for mine, _ in case.pairs
        for record in mine.trace.body.records
        if record.kernel_id is not None
    }


def _phase(
    graph: ProgramGraph, shown: Any, required: Any, loaded: Any, start: int
) -> Iterator[CircuitRow]:
    places: dict[Site, int] = {}
    for place, (index, op) in enumerate(graph.ops(), start):
        places |= {Site(index, edge.name): place for edge in op.results}
        names = [name for name in op.inputs if name and graph.is_edge(index, name)]
        origins = [graph.origin(Site(index, name)) for name in names]
        step = graph.steps[index]
        call = graph.call(Site(index, op.results[0].name))
        found = [row for edge in op.results for row in _own(graph, index, edge, shown)]
        metrics = [row.metrics for row in found if row.metrics is not None]
        yield CircuitRow(
            phase=graph.phase,
            step=graph.step_key(index),
            layer=step.layer,
            op=op.id,
            operator=op.operator,
            function=step.function,
            kernel_id=call.kernel_id,
            required_contract_id=required.get(
                (graph.phase, step.function, op.id), call.contract_id
            ),
            resolved_contract_id=loaded.get((graph.phase, step.layer, call.kernel_id)),
            stops=tuple(row.stop for row in found),
            max_abs=_most(item.max_abs for item in metrics),
            rmse=_most(item.rmse for item in metrics),
            exact_ratio=min((item.exact_ratio for item in metrics), default=None),
            reads=tuple(places[origin] for origin in origins if origin in places),
        )


def _own(graph: ProgramGraph, index: int, edge: Edge, shown: Any) -> list[Row]:
    """Return the rows of an edge under its own name; those of what equals it only without one."""
    rows: list[Row] = shown.get(Site(index, edge.name), [])
    point = graph.point(index, edge)
    return [row for row in rows if (row.checkpoint_id, row.role) == point] or rows


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)


def first_material(case: Case, rows: list[Row]) -> int | None:
    """Return the stop of the logits whose first token is the first to flip."""
    flipped = {item.segment for item in case.rankings.values() if item.flips}
    stops = [r.stop for r in rows if r.checkpoint_id == "logits" and r.segment in flipped]
    return min(stops, default=None)
