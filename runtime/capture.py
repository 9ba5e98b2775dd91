"""Capture a subject: run a request with and without captures, prove that looking changed nothing.

Control A and control B are two uncaptured runs; the aggregate run captures every wanted edge. All
output logits and the final state are compared bit by bit, with no tolerance (XRAY-22, XRAY-43).
When the aggregate differs, each boundary is captured alone; what still differs is rejected.
"""

import difflib
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import jax
import msgspec
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.drivers import XLA_OPTIONS, Driver
from cke.runtime.package import Package
from cke.runtime.records import join_id, record_of
from cke.runtime.schedule import CaptureRequest, plan_segments, tokens_sha256
from cke.runtime.session import Session
from cke.schemas.manifest import CheckpointBinding
from cke.schemas.reading import canonical_sha256
from cke.schemas.trace import (
    Body,
    CacheLayout,
    Identity,
    KernelBatch,
    Neutrality,
    Producer,
    Record,
    Segment,
)

Host = NDArray[np.generic]
Outputs = list[Host]


class Sink(Protocol):
    """Takes captures one at a time."""

    def add(self, record: Record, array: Host) -> None:
        """Keep one capture."""
        ...

    def reset(self) -> None:
        """Drop every capture."""
        ...


class Subject(msgspec.Struct, frozen=True):
    """What is captured: the production driver, and drivers of packages that capture.

    `evidence` returns the driver whose package captures the given checkpoint names (patterns).
    """

    production: Driver
    evidence: Callable[[tuple[str, ...]], Driver]
    identity: Identity
    context: int | None = None


class Edges:
    """The checkpoints of a package in execution order, by captured key."""

    def __init__(self, package: Package) -> None:
        assert package.manifest is not None, "a capturing package has a manifest"
        self.bindings: dict[tuple[str, str], tuple[CheckpointBinding, int, int | None]] = {}
        self.names: dict[tuple[str, str, str], str] = {}
        contracts = {
            call.id: call.contract_id
            for program in package.calls.programs
            for function in program.functions
            for call in function.calls
        }
        self.contracts = contracts
        by_function: dict[tuple[str, str], list[CheckpointBinding]] = {}
        for binding in package.manifest.checkpoints:
            by_function.setdefault((binding.phase, binding.function), []).append(binding)
        for program in package.calls.programs:
            order = 0
            for function, items in by_function.items():
                self.names.update({(*function, item.edge): item.checkpoint.name for item in items})
            for step in program.steps:
                found = by_function.get((program.phase, step.function), [])
                for binding in sorted(found, key=lambda item: item.order):
                    key = _key(binding, step.layer)
                    self.bindings[program.phase, key] = (binding, order, step.layer)
                    order += 1

    def aliased(self, binding: CheckpointBinding, layer: int | None) -> str | None:
        """Return the id of the checkpoint whose value an alias has, when that is one."""
        if binding.alias_of is None:
            return None
        name = self.names.get((binding.phase, binding.function, binding.alias_of))
        return None if name is None else join_id(name, layer)

    def keys(self) -> dict[str, set[str]]:
        """Return the capture keys of each checkpoint name: one, or one for each role."""
        found: dict[str, set[str]] = {}
        for binding, _, _ in self.bindings.values():
            found.setdefault(binding.checkpoint.name, set()).add(_key(binding, None))
        return found

    def total(self, phase: str) -> int:
        """Return how many edges the phase has, every layer counted."""
        return sum(1 for found, _ in self.bindings if found == phase)


def _key(binding: CheckpointBinding, layer: int | None) -> str:
    checkpoint = binding.checkpoint
    name = checkpoint.name if checkpoint.role is None else f"{checkpoint.name}.{checkpoint.role}"
    return name if layer is None else f"layer.{layer}.{name}"


def capture_subject(subject: Subject, request: CaptureRequest, sink: Sink) -> Body:
    """Run the gate, give every neutral capture to `sink`, and return the trace's body.

    `records` of the body is empty: the sink has them. A run that is not repeatable gives no
    capture; one that is not neutral even boundary by boundary gives those that are.
    """
    segments = plan_segments(request)
    first = _run(subject.production, subject, segments)
    second = _run(subject.production, subject, segments)
    evidence = subject.evidence(_patterns(subject.production.package, request))
    edges = Edges(evidence.package)
    repeatable = _equal(first, second)
    neutrality = Neutrality(
        status="rejected",
        control_equal=repeatable,
        outputs_equal=None,
        mode="aggregate",
        compared_outputs=len(first),
    )
    if repeatable:
        captured = _run(evidence, subject, segments, _Emitter(edges, request, sink))
        equal = _equal(second, captured)
        status = "neutral" if equal else "rejected"
        neutrality = msgspec.structs.replace(neutrality, status=status, outputs_equal=equal)
        if not equal:
            sink.reset()
            neutrality = _isolated(subject, request, segments, second, edges, sink, neutrality)
    return _body(subject, request, segments, edges, neutrality)


def _isolated(
    subject: Subject,
    request: CaptureRequest,
    segments: tuple[Segment, ...],
    control: Outputs,
    edges: Edges,
    sink: Sink,
    neutrality: Neutrality,
) -> Neutrality:
    """Capture one boundary at a time; keep those whose run equals the control."""
    names = sorted(
        {
            binding.checkpoint.name
            for binding, _, layer in edges.bindings.values()
            if request.wants(binding.checkpoint.name, layer)
        }
    )
    keys = edges.keys()
    kept: list[str] = []
    for name in names:
        driver = subject.evidence(tuple(sorted(keys[name])))
        found = _Memory()
        emit = _Emitter(Edges(driver.package), request, found)
        if _equal(control, _run(driver, subject, segments, emit)):
            found.release(sink)
            kept.append(name)
    status = "isolated" if kept else "rejected"
    return msgspec.structs.replace(neutrality, status=status, mode="isolated", isolated=tuple(kept))


def _patterns(package: Package, request: CaptureRequest) -> tuple[str, ...]:
    """Return the captures of the build that the request asks for; an unknown edge is CKE704."""
    if request.edges is None:
        return ("*",)
    keys = Edges(package).keys()
    unknown = sorted(request.edges - keys.keys())
    if unknown:
        near = difflib.get_close_matches(unknown[0], keys, 3)
        raise CkeError(
            Diagnostic(
                code="CKE722",
                message=f"expected the name of a checkpoint, got `{unknown[0]}`",
                notes=tuple(Note(f"did you mean `{name}`?", label="help") for name in near),
            )
        )
    return tuple(sorted(key for name in request.edges for key in keys[name]))


class _Memory:
    """The captures of one boundary, kept until its run was compared."""

    def __init__(self) -> None:
        self.items: list[tuple[Record, Host]] = []

    def add(self, record: Record, array: Host) -> None:
        """Keep one capture."""
        self.items.append((record, array))

    def reset(self) -> None:
        """Drop every capture."""
        self.items.clear()

    def release(self, sink: Sink) -> None:
        """Give every capture to `sink`."""
        for record, array in self.items:
            sink.add(record, array)


def _run(
    driver: Driver,
    subject: Subject,
    segments: tuple[Segment, ...],
    emit: "_Emitter | None" = None,
) -> Outputs:
    """Return the logits of every segment and the final state, as host arrays."""
    batch = len(segments[0].tokens)
    total = max(max(segment.cache_token_count) for segment in segments)
    session = Session(driver, batch=batch, rows=total, context=subject.context, uniform=True)
    outputs: Outputs = []
    for segment in segments:
        tokens = np.asarray(segment.tokens, np.int32)
        positions = np.asarray(segment.positions, np.int32)
        logits = session.prefill(tokens, positions, logits="all")
        outputs.append(np.asarray(logits))
        if emit is not None:
            emit(segment, session.captured)
    return outputs + [np.asarray(leaf) for leaf in jax.tree.leaves(session.state)]


def _equal(left: Outputs, right: Outputs) -> bool:
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True)
    )


class _Emitter:
    """Turns captured device arrays into records with their canonical axes."""

    def __init__(self, edges: Edges, request: CaptureRequest, sink: Sink) -> None:
        self.edges = edges
        self.request = request
        self.sink = sink

    def __call__(self, segment: Segment, captured: Mapping[str, Array]) -> None:
        """Give the captures of one forward to the sink, in execution order."""
        phase = "decode" if len(segment.tokens[0]) == 1 else "prefill"
        found = [
            (self.edges.bindings[phase, key], array)
            for key, array in captured.items()
            if (phase, key) in self.edges.bindings
        ]
        for (binding, order, layer), array in sorted(found, key=lambda item: item[0][1]):
            if self.request.wants(binding.checkpoint.name, layer):
                self._emit(segment, binding, order, layer, array)

    def _emit(
        self,
        segment: Segment,
        binding: CheckpointBinding,
        order: int,
        layer: int | None,
        array: Array,
    ) -> None:
        host = canonical_rows(np.asarray(array), binding.type.axes, segment)
        record = record_of(
            host,
            name=binding.checkpoint.name,
            layer=layer,
            phase=segment.phase,
            segment=segment.index,
            axes=binding.type.axes,
            role=binding.checkpoint.role,
            order=order,
            kernel_id=binding.kernel_id or None,
            numerical_contract_id=self.edges.contracts.get(binding.call),
            effective_contract_id=self.edges.contracts.get(binding.call),
            version=binding.checkpoint.version,
            alias_of=self.edges.aliased(binding, layer),
        )
        self.sink.add(record, host)


def canonical_rows(array: Host, axes: tuple[str, ...], segment: Segment) -> Host:
    """Return the array without bucket padding: T of the segment, S of what is cached.

    Keys lie in append order, as a cache without a ring keeps them; those that a row does not
    have are zero.
    """
    if "T" in axes:
        array = np.take(array, range(len(segment.tokens[0])), axis=axes.index("T"))
    if "S" in axes:
        at = axes.index("S")
        array = np.take(array, range(max(segment.cache_token_count)), axis=at)
        counts = np.asarray(segment.cache_token_count)
        if (counts < counts.max()).any() and "B" in axes:
            keys = np.arange(counts.max())
            shape = [1] * array.ndim
            shape[axes.index("B")], shape[at] = counts.size, counts.max()
            array = np.where((keys[None, :] < counts[:, None]).reshape(shape), array, 0).astype(
                array.dtype
            )
    return np.ascontiguousarray(array)


def _body(
    subject: Subject,
    request: CaptureRequest,
    segments: tuple[Segment, ...],
    edges: Edges,
    neutrality: Neutrality,
) -> Body:
    package = subject.production.package
    assert package.manifest is not None, "a production package has a manifest"
    scheduled = tuple(
        msgspec.structs.replace(segment, kernel_batches=kernel_batches(package, segment))
        for segment in segments
    )
    phases = {"decode" if len(s.tokens[0]) == 1 else "prefill" for s in segments}
    return Body(
        side="subject",
        producer=Producer(
            name="cke",
            version=str(package.manifest.circuit_version),
            dtype=package.calls.dtype,
            weight_dtypes=_weight_dtypes(subject.production),
            settings={"driver": subject.production.name, "xla": dict(XLA_OPTIONS)},
            facts=dict(package.calls.dims),
        ),
        identity=msgspec.structs.replace(
            subject.identity,
            circuit=f"{package.manifest.circuit}@{package.manifest.circuit_version}",
            manifest_sha256=canonical_sha256(package.manifest),
            tokens_sha256=tokens_sha256(request),
        ),
        segments=scheduled,
        records=(),
        cache_layout=_cache_layout(package, segments),
        threads=_threads(),
        mesh={"devices": 1, "platform": jax.default_backend()},
        environment={
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        neutrality=neutrality,
        edges_total=max((edges.total(phase) for phase in phases), default=None),
    )


def kernel_batches(package: Package, segment: Segment) -> tuple[KernelBatch, ...]:
    """Return how often each kernel runs in one forward, with its contract."""
    phase = "decode" if len(segment.tokens[0]) == 1 else "prefill"
    program = package.program(phase)
    functions = {function.name: function for function in program.functions}
    counts: dict[tuple[str, str], int] = {}
    for step in program.steps:
        for call in functions[step.function].calls:
            key = (call.kernel_id, call.contract_id)
            counts[key] = counts.get(key, 0) + 1
    return tuple(
        KernelBatch(
            kernel_id=kernel,
            numerical_contract_id=contract,
            effective_contract_id=contract,
            calls=count,
        )
        for (kernel, contract), count in sorted(counts.items())
    )


def _weight_dtypes(driver: Driver) -> dict[str, int]:
    counts: dict[str, int] = {}
    weights: Any = driver.weights
    arrays = {id(leaf): leaf for leaf in jax.tree.leaves(weights)}
    for leaf in arrays.values():
        counts[leaf.dtype.name] = counts.get(leaf.dtype.name, 0) + 1
    return counts


def _cache_layout(package: Package, segments: tuple[Segment, ...]) -> CacheLayout | None:
    program = package.program("prefill" if "prefill" in package.phases else package.phases[0])
    lanes: Iterable[Any] = (
        lane for slot in program.slots if slot.kind == "cache" for lane in slot.lanes
    )
    lane = next(iter(lanes), None)
    if lane is None or len(lane.type.shape) != 4:
        return None
    heads, width = int(lane.type.shape[2]), int(lane.type.shape[3])
    return CacheLayout(
        layout_id="cke.rows.v1",
        layer_stride=None,
        head_stride=width,
        token_stride=heads * width,
        channel_stride=1,
        capacity=None,
    )


def _threads() -> int:
    import os

    return len(os.sched_getaffinity(0))
