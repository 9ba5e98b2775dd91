"""The running program against its own kernels, replayed on the subject's own captures.

Where every op agrees on the oracle's inputs, what is left is how the ops were run: the compiled
program, the rows of a cache, or the positions that were fed.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS
from cke.schemas.diagnosis import Counterfactual
from cke.schemas.graph_ir import Op
from cke.schemas.trace import Segment
from cke.xray.candidates import position_changes
from cke.xray.diff import OVER, status_of
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph, Site
from cke.xray.local import Bench, local_gate
from cke.xray.metrics import compare, error_text
from cke.xray.replay import Change, KernelReplayer, NotReplayable, ReferenceReplayer

Array = NDArray[Any]


def compiled_fault(bench: Bench, segment: int, step: int) -> Finding | None:
    """Return where the subject's own captures are not what its kernels give on its own inputs."""
    graph = bench.graph(segment)
    for op in graph.function(step).ops:
        for edge in op.results:
            site = Site(step, edge.name)
            found = _compiled(bench, graph, segment, site, op)
            if found is not None:
                return found
    return None


def _compiled(
    bench: Bench, graph: ProgramGraph, segment: int, site: Site, op: Op
) -> Finding | None:
    captured = bench.subject.value(graph, segment, site)
    if captured is None:
        return None
    record = bench.subject.records(graph, segment, site)[0]
    try:
        made = KernelReplayer(graph, bench.subject, bench.weights, segment).result(site)
    except NotReplayable:
        return None
    if made.shape != captured.shape:
        return None
    axes = graph.edge(site).type.axes
    valid = bench.valid(segment, site)
    metrics = compare(captured, made, axes, valid)
    gate = local_gate(graph, ((site.step, op),), captured, captured)
    if status_of(metrics, gate) not in OVER:
        return None
    base = Finding(
        failure_class="COMPILED_PROGRAM_DIVERGENCE",
        owner="compiler",
        checkpoint_id=record.checkpoint_id,
        role=record.role,
        segment=segment,
        op=op.id,
        operator=op.operator,
        kernel_id=graph.call(site).kernel_id,
        source=str(op.span),
        metrics=metrics,
        gate=gate,
        because=(
            "kernel, definition and oracle agree on the oracle's inputs; the running program gave "
            f"another value on its own inputs (relative RMSE {error_text(metrics)})",
        ),
    )
    if OPERATORS[op.operator].state is not None:
        return msgspec.structs.replace(
            base,
            failure_class="STATE_CACHE_DIVERGENCE",
            owner="runtime",
            because=(
                *base.because,
                state_order(bench, graph, segment, site, captured, made),
            ),
        )
    fed = _fed_positions(bench, graph, segment, site, op, captured)
    if fed is not None:
        return msgspec.structs.replace(
            base,
            failure_class="POSITION_STATE_MISMATCH",
            owner="runtime",
            because=(*base.because, f"it is what the op gives for other positions: {fed.new}"),
            confirmed_by=fed,
        )
    return base


def state_order(
    bench: Bench, graph: ProgramGraph, segment: int, site: Site, captured: Array, made: Array
) -> str:
    """Return which rows of a cache are wrong: those appended now, or those kept from before."""
    schedule: Segment = bench.subject.segments[segment]
    wrong = captured.astype(np.float64) != made.astype(np.float64)
    rows = wrong.reshape(wrong.shape[0], wrong.shape[1], -1).any(axis=-1)
    kept = np.arange(rows.shape[1])[None, :] < np.asarray(schedule.append_index)[:, None]
    if (rows & kept).any():
        first = np.argwhere(rows & kept)[0]
        return f"row {int(first[1])} of sequence {int(first[0])}, cached before, was changed"
    first = np.argwhere(rows)[0]
    return f"row {int(first[1])} of sequence {int(first[0])}, appended now, was not stored"


def _fed_positions(
    bench: Bench, graph: ProgramGraph, segment: int, site: Site, op: Op, captured: Array
) -> Counterfactual | None:
    gate = local_gate(graph, ((site.step, op),), captured, captured)
    axes = graph.edge(site).type.axes
    for candidate in position_changes(graph, site.step, op):
        change: Change = candidate.change
        try:
            replayer = ReferenceReplayer(graph, bench.subject, bench.weights, segment, change)
            metrics = compare(captured, replayer.result(site), axes, bench.valid(segment, site))
        except NotReplayable:
            continue
        if status_of(metrics, gate) not in OVER:
            return Counterfactual(
                op=op.id,
                kind="position",
                what="positions",
                old="as fed",
                new=candidate.new,
                origin="schedule",
                before=0.0,
                after=metrics.relative_rmse or 0.0,
                closes=True,
            )
    return None
