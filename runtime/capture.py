"""Capture a subject: run a request with and without captures, prove that looking changed nothing.

Control A and control B are two uncaptured runs; the aggregate run captures every wanted edge. All
output logits and the final state are compared bit by bit, with no tolerance (XRAY-22, XRAY-43).
When the aggregate differs, it is set aside and each boundary is captured alone; what still differs
is rejected. Runs are compared under equal conditions only: the same kernels, threads and options.
"""

import hashlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from cke.runtime.collect import Collector, Sink
from cke.runtime.drivers import XLA_OPTIONS, Driver
from cke.runtime.edges import Edges, capture_patterns
from cke.runtime.loaded_kernels import call_contracts
from cke.runtime.package import Package
from cke.runtime.schedule import (
    CaptureRequest,
    Pixels,
    check_pixels,
    encoder_inputs,
    plan_segments,
)
from cke.runtime.session import Session
from cke.runtime.state import DTYPES
from cke.runtime.trace_body import subject_body, threads
from cke.runtime.written import as_written, held_positions
from cke.schemas.trace import Body, Identity, Neutrality, Segment

Outputs = dict[str, str]
"""Each output of a run by name, as the digest of its dtype, shape and bytes."""

SHOWN = 16


class Subject(msgspec.Struct, frozen=True):
    """What is captured: the production driver, and drivers of packages that capture.

    `evidence` returns the driver whose package captures the given checkpoint names (patterns).
    """

    production: Driver
    evidence: Callable[[tuple[str, ...]], Driver]
    identity: Identity
    context: int | None = None


def capture_subject(subject: Subject, request: CaptureRequest, sink: Sink) -> Body:
    """Run the gate, give every neutral capture to `sink`, and return the trace's body.

    `records` of the body is empty: the sink has them. A run that is not repeatable gives no
    capture; one that is not neutral even boundary by boundary gives those that are.
    """
    encode = subject.production.package.phases == ("encode",)
    request = msgspec.structs.replace(request, encode=encode)
    check_pixels(request, takes_pixels(subject.production.package))
    segments = plan_segments(request)
    written: list[Segment] = []
    pixels = request.pixels
    first = _run(subject.production, subject, segments, pixels, written=written)
    control = _run(subject.production, subject, segments, pixels)
    neutrality = Neutrality(
        status="rejected",
        control_equal=first == control,
        outputs_equal=None,
        mode="aggregate",
        compared_outputs=len(control),
        outputs_sha256=_combined(control),
    )
    if first == control:
        gate = _Gate(subject, request, segments, control, sink)
        neutrality = gate.captured(neutrality)
    else:
        neutrality = msgspec.structs.replace(
            neutrality, finding="RUNTIME_NOT_REPEATABLE", differing=_differing(first, control)
        )
    done = tuple(written)
    return subject_body(subject.production, subject.identity, request, done, neutrality)


class _Gate:
    """The captured half of the gate: everything that is compared with control B."""

    def __init__(
        self,
        subject: Subject,
        request: CaptureRequest,
        segments: tuple[Segment, ...],
        control: Outputs,
        sink: Sink,
    ) -> None:
        self.subject = subject
        self.request = request
        self.segments = segments
        self.control = control
        self.sink = sink

    def captured(self, neutrality: Neutrality) -> Neutrality:
        """Capture all edges at once, else one boundary at a time."""
        patterns = capture_patterns(self.subject.production.package, self.request.edges)
        driver = self.subject.evidence(patterns)
        outputs = self._outputs(driver)
        alike = conditions(driver) == conditions(self.subject.production)
        equal = outputs == self.control
        neutrality = msgspec.structs.replace(neutrality, outputs_equal=equal)
        if equal and alike:
            return msgspec.structs.replace(neutrality, status="neutral")
        self.sink.reject()
        neutrality = msgspec.structs.replace(
            neutrality,
            status="rejected" if alike else "evidence_program",
            finding="CAPTURE_NOT_NEUTRAL",
            differing=_differing(outputs, self.control),
        )
        return self._isolated(driver.package, neutrality)

    def _isolated(self, package: Package, neutrality: Neutrality) -> Neutrality:
        """Capture one boundary at a time; keep those whose run equals the control."""
        edges = Edges(package)
        keys = edges.keys()
        names = {
            binding.checkpoint.name
            for binding, _, layer in edges.bindings.values()
            if self.request.wants(binding.checkpoint.name, layer)
        }
        kept: list[str] = []
        for name in sorted(names):
            mark = self.sink.mark()
            driver = self.subject.evidence(tuple(sorted(keys[name])))
            equal = self._outputs(driver, name) == self.control
            if equal and conditions(driver) == conditions(self.subject.production):
                kept.append(name)
            else:
                self.sink.rewind(mark)
        return msgspec.structs.replace(
            neutrality,
            status="isolated" if kept else neutrality.status,
            mode="isolated",
            isolated=tuple(kept),
            rejected=tuple(sorted(names - set(kept))),
        )

    def _outputs(self, driver: Driver, name: str | None = None) -> Outputs:
        """Run with captures; with `name`, those of that boundary alone are given to the sink."""
        request = self.request
        if name is not None and request.edges is None:
            request = msgspec.structs.replace(request, edges=frozenset({name}))
        contracts = call_contracts(driver.package)
        collector = Collector(Edges(driver.package), request, self.sink, contracts)
        return _run(driver, self.subject, self.segments, request.pixels, collector)


def conditions(driver: Driver) -> object:
    """Return what two runs must share for their bits to be compared (XRAY-43)."""
    providers = sorted(
        (program.phase, function.name, call.id, call.kernel_id, call.function)
        for program in driver.package.calls.programs
        for function in program.functions
        for call in function.calls
    )
    return driver.name, jax.default_backend(), threads(), XLA_OPTIONS, providers


def _run(
    driver: Driver,
    subject: Subject,
    segments: tuple[Segment, ...],
    pixels: Pixels | None,
    collector: Collector | None = None,
    written: list[Segment] | None = None,
) -> Outputs:
    """Return the digests of the logits of every segment and of the final state.

    `written` takes each segment with what it did to the cache.
    """
    if segments[0].phase == "encode":
        return _encoded(driver, segments[0], pixels, collector, written)
    session = Session(
        driver,
        batch=len(segments[0].tokens),
        rows=max(max(segment.cache_token_count) for segment in segments),
        context=subject.context,
        uniform=True,
        watch=None if collector is None else collector.watch,
    )
    outputs: Outputs = {}
    for segment in segments:
        if collector is not None:
            collector.begin(segment)
        tokens = np.asarray(segment.tokens, np.int32)
        positions = np.asarray(segment.positions, np.int32)
        before = None if written is None else held_positions(session.state)
        logits = session.prefill(tokens, positions, logits="all")
        outputs[f"segment.{segment.index}.logits"] = bits(logits)
        if written is not None:
            written.append(as_written(segment, before, session.state))
        if collector is not None:
            collector.finish()
    leaves, _ = jax.tree.flatten_with_path(session.state)
    for path, leaf in leaves:
        outputs["state." + ".".join(str(item.key) for item in path)] = bits(leaf)
    return outputs


def _encoded(
    driver: Driver,
    segment: Segment,
    pixels: Pixels | None,
    collector: Collector | None,
    written: list[Segment] | None,
) -> Outputs:
    """Return the digests of what a circuit without state gives for one forward."""
    if collector is not None:
        collector.begin(segment)
    given = encoder_inputs(segment, pixels)
    inputs = {
        item.name: jnp.asarray(given[item.name], DTYPES[item.type.dtype])
        for item in driver.package.program("encode").inputs
    }
    watch = None if collector is None else collector.watch
    found = driver.run("encode", {}, inputs, watch=watch).outputs
    if collector is not None:
        collector.finish()
    if written is not None:
        written.append(segment)
    return {f"segment.0.output.{index}": bits(item) for index, item in enumerate(found)}


def takes_pixels(package: Package) -> bool:
    """Return whether the package encodes images."""
    return any(item.name == "pixels" for item in package.calls.programs[0].inputs)


def bits(array: object) -> str:
    """Return the digest of an array: its dtype, shape and bytes."""
    host = np.ascontiguousarray(np.asarray(array))
    text = f"{host.dtype.name}{host.shape}".encode()
    return hashlib.sha256(text + b"\0" + host.tobytes()).hexdigest()


def _combined(outputs: Outputs) -> str:
    lines = "".join(f"{name} {value}\n" for name, value in sorted(outputs.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _differing(left: Outputs, right: Outputs) -> tuple[str, ...]:
    names = dict.fromkeys([*left, *right])
    return tuple(name for name in names if left.get(name) != right.get(name))[:SHOWN]
