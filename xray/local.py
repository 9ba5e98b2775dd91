"""One op judged alone: kernel, reference and oracle on the oracle's inputs, and what that says."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import RUN_TO_WIRE, WIRE_DTYPES
from cke.schemas.diagnosis import Replay
from cke.schemas.graph_ir import Op
from cke.schemas.numerical_report import Gate, Metrics
from cke.schemas.trace import Record
from cke.xray.budget import forward_error
from cke.xray.diff import OVER, status_of
from cke.xray.graph import ProgramGraph, Site, graph_of
from cke.xray.metrics import compare
from cke.xray.profile import narrowed
from cke.xray.replay import (
    Change,
    KernelReplayer,
    NotReplayable,
    ReferenceReplayer,
    SubjectWeights,
)
from cke.xray.validity import valid_elements
from cke.xray.values import TraceValues

Array = NDArray[Any]


class Bench:
    """Both traces of a comparison, the graph and the weights: everything a replay needs."""

    def __init__(
        self,
        graphs: dict[str, ProgramGraph],
        subject: TraceValues,
        oracle: TraceValues,
        weights: SubjectWeights,
        constants: dict[str, Any],
        weights_compared: bool = True,
    ) -> None:
        self.graphs = graphs
        self.subject, self.oracle = subject, oracle
        self.weights = weights
        self.constants = constants
        self.weights_compared = weights_compared

    def graph(self, segment: int) -> ProgramGraph:
        """Return the graph of the phase that a segment ran."""
        return graph_of(self.graphs, self.subject.segments[segment])

    def valid(self, segment: int, site: Site) -> Array | None:
        """Return which elements of an edge both sides computed."""
        record = self.oracle.record(self.graph(segment), segment, site)
        kind = self.graph(segment).type_of(site)
        if record is None or kind is None:
            return None
        sizes = dict(zip(record.axes, record.shape, strict=True))
        shaped = msgspec.structs.replace(
            record, axes=kind.axes, shape=tuple(sizes[name] for name in kind.axes)
        )
        return valid_elements(shaped, self.subject.segments[segment])

    def reference(
        self,
        segment: int,
        site: Site,
        change: Change | None = None,
        side: TraceValues | None = None,
    ) -> ReferenceReplayer:
        """Return a finished float64 replay of an edge."""
        graph = self.graph(segment)
        replayer = ReferenceReplayer(graph, side or self.oracle, self.weights, segment, change)
        replayer.result(site)
        return replayer


class Judged(msgspec.Struct, frozen=True):
    """An edge judged alone, with the arrays that a confirmation needs."""

    site: Site
    segment: int
    op: Op
    replay: Replay
    reference: Array
    oracle: Array
    valid: Array | None
    cone: tuple[tuple[int, Op], ...]
    kernel: Array
    record: Record

    @property
    def clean(self) -> bool:
        """Whether the op alone explains nothing."""
        return self.replay.says == "inherited"


def judge(bench: Bench, segment: int, site: Site) -> Judged | None:
    """Return the judgement of an edge; None when the oracle does not show it or it cannot run.

    Of several checkpoints that show the edge, the first that disagrees is meant: between it and
    the one before, the oracle does what the circuit leaves out.
    """
    graph = bench.graph(segment)
    found: Judged | None = None
    for record in bench.oracle.records(graph, segment, site):
        found = _judge(bench, segment, site, record)
        if found is not None and not found.clean:
            return found
    return found


def _judge(bench: Bench, segment: int, site: Site, record: Record) -> Judged | None:
    graph = bench.graph(segment)
    wanted = bench.oracle.shown(graph, segment, graph.origin(site), record)
    op = graph.producer(site)
    if wanted is None or op is None:
        return None
    try:
        reference = bench.reference(segment, site)
        kernels = KernelReplayer(graph, bench.oracle, bench.weights, segment)
        made = kernels.result(site)
    except NotReplayable:
        return None
    expected = reference.result(site)
    if made.shape != wanted.shape or expected.shape != wanted.shape:
        return None
    valid = bench.valid(segment, site)
    axes = graph.edge(site).type.axes
    cone = tuple((step, item) for (step, _), item in reference.ops.items())
    producer = bench.oracle.folders[0].trace.body.producer
    narrow = narrowed(producer.name, producer.dtype, record.computed)
    own = local_gate(graph, cone, made, wanted)
    gate = local_gate(graph, cone, made, wanted, narrow)
    left = _measured(made, expected, axes, valid)
    middle = _measured(expected, wanted, axes, valid)
    right = _measured(made, wanted, axes, valid)
    return Judged(
        site=site,
        segment=segment,
        op=op,
        replay=Replay(
            ops=tuple(f"{graph.step_key(step)}.{item.id}" for step, item in cone),
            inputs=tuple(f"{_step(graph, s)}{s.edge}" for s in reference.read),
            kernel_against_reference=left,
            reference_against_oracle=middle,
            kernel_against_oracle=right,
            compiled_against_kernel=None,
            gate=gate,
            says=_says(left, middle, right, own, gate),
        ),
        reference=expected,
        oracle=wanted,
        valid=valid,
        cone=cone,
        kernel=made,
        record=record,
    )


def _step(graph: ProgramGraph, site: Site) -> str:
    return "" if site.step < 0 else f"{graph.step_key(site.step)}."


def _measured(left: Array, right: Array, axes: tuple[str, ...], valid: Array | None) -> Metrics:
    return compare(np.asarray(left), np.asarray(right), axes, valid)


def _says(left: Metrics, middle: Metrics, right: Metrics, own: Gate, gate: Gate) -> Any:
    """Return the verdict; `own` is the budget of the kernel, `gate` that of the oracle's too."""
    if status_of(right, gate) not in OVER and status_of(left, own) not in OVER:
        return "inherited"
    if left.mismatched_nonfinite:
        return "not_finite"
    if status_of(left, own) in OVER:
        return "kernel"
    return "oracle_differs" if status_of(middle, gate) in OVER else "inherited"


def local_gate(
    graph: ProgramGraph,
    cone: tuple[tuple[int, Op], ...],
    made: Array,
    wanted: Array,
    narrow: tuple[str, ...] = (),
) -> Gate:
    """Return the budget of a replay: the longest sum of its ops, and no depth."""
    longest = 1
    for step, op in cone:
        for name in op.inputs:
            kind = None if name is None else _kind(graph, Site(step, name))
            sizes = () if kind is None else kind.shape
            longest = max([longest, *(n for n in sizes if isinstance(n, int))])
        if op.operator == "sdpa":
            longest = max(longest, made.shape[-1])
    dtypes = (edge.type.dtype for _, op in cone for edge in op.results)
    stored = [RUN_TO_WIRE[dtype] for dtype in dtypes if dtype in RUN_TO_WIRE]
    theirs = WIRE_DTYPES[wanted.dtype.name]
    square = np.square(np.where(np.isfinite(wanted.astype(np.float64)), wanted, 0), dtype=float)
    rms = float(np.sqrt(square.mean())) if square.size else None
    return forward_error((*stored, theirs, *narrow), longest, len(cone) // 4, rms)


def _kind(graph: ProgramGraph, site: Site) -> Any:
    try:
        return graph.type_of(site)
    except StopIteration:
        return None
