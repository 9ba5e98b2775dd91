"""The body of a subject's trace: what ran, on what, under which schedule and which kernels."""

import os
import platform
from collections.abc import Iterable
from typing import Any

import jax
import msgspec
import numpy as np

from cke.runtime.drivers import XLA_OPTIONS, Driver
from cke.runtime.edges import Edges
from cke.runtime.loaded_kernels import call_contracts
from cke.runtime.package import Package
from cke.runtime.schedule import CaptureRequest, program_phase, tokens_sha256
from cke.schemas.reading import canonical_sha256
from cke.schemas.trace import (
    Body,
    CacheLayout,
    Identity,
    KernelBatch,
    Neutrality,
    Producer,
    Segment,
)


def subject_body(
    driver: Driver,
    identity: Identity,
    request: CaptureRequest,
    segments: tuple[Segment, ...],
    neutrality: Neutrality,
) -> Body:
    """Return the body, without records, of a captured run of the production driver."""
    package = driver.package
    assert package.manifest is not None, "a production package has a manifest"
    scheduled = tuple(
        msgspec.structs.replace(segment, kernel_batches=kernel_batches(package, segment))
        for segment in segments
    )
    phases = {program_phase(segment) for segment in segments}
    return Body(
        side="subject",
        producer=Producer(
            name="cke",
            version=str(package.manifest.circuit_version),
            dtype=package.calls.dtype,
            weight_dtypes=_weight_dtypes(driver),
            settings={"driver": driver.name, "xla": dict(XLA_OPTIONS)},
            facts=dict(package.calls.dims),
        ),
        identity=msgspec.structs.replace(
            identity,
            circuit=f"{package.manifest.circuit}@{package.manifest.circuit_version}",
            manifest_sha256=canonical_sha256(package.manifest),
            tokens_sha256=tokens_sha256(request),
        ),
        segments=scheduled,
        records=(),
        cache_layout=_cache_layout(package, segments),
        threads=threads(),
        mesh={"devices": 1, "platform": jax.default_backend()},
        environment={
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        neutrality=neutrality,
        edges_total=max((Edges(package).total(phase) for phase in phases), default=None),
    )


def kernel_batches(package: Package, segment: Segment) -> tuple[KernelBatch, ...]:
    """Return how often each kernel runs in one forward, with its contracts."""
    phase = program_phase(segment)
    program = package.program(phase)
    functions = {function.name: function for function in program.functions}
    contracts = call_contracts(package)
    counts: dict[tuple[str, str, str | None], int] = {}
    for step in program.steps:
        for call in functions[step.function].calls:
            key = (call.kernel_id, *contracts[phase, step.function, call.id])
            counts[key] = counts.get(key, 0) + 1
    return tuple(
        KernelBatch(
            kernel_id=kernel,
            numerical_contract_id=numerical,
            effective_contract_id=effective,
            calls=count,
        )
        for (kernel, numerical, effective), count in sorted(counts.items(), key=str)
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


def threads() -> int:
    """Return how many processors the run may use."""
    return len(os.sched_getaffinity(0))
