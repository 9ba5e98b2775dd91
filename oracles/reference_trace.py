"""The float64 interpreter as an oracle: every edge of GraphIR, from the operators' definitions."""

import platform
from collections.abc import Mapping

import msgspec
import numpy as np

from cke.oracles import reference
from cke.oracles.base import Array, Sink
from cke.runtime.records import record_of, split_id
from cke.runtime.schedule import (
    CaptureRequest,
    check_pixels,
    encoder_inputs,
    plan_segments,
    program_phase,
    tokens_sha256,
)
from cke.schemas.manifest import CheckpointBinding, Manifest
from cke.schemas.reading import canonical_sha256
from cke.schemas.trace import Body, CacheLayout, Identity, Neutrality, Producer, Segment

Bindings = Mapping[str, CheckpointBinding]


class ReferenceOracle:
    """A manifest's graph and float64 weights; segments run in order over one state."""

    name = "reference"

    def __init__(
        self, manifest: Manifest, weights: Mapping[str, Array], identity: Identity
    ) -> None:
        self.manifest = manifest
        self.weights = weights
        self.identity = identity

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Run the request, give every capture to `sink`, and return the trace's body."""
        encode = "encode" in {program.phase for program in self.manifest.graph.programs}
        request = msgspec.structs.replace(request, encode=encode)
        inputs = self.manifest.graph.programs[0].inputs
        check_pixels(request, any(item.name == "pixels" for item in inputs))
        segments = plan_segments(request)
        state: reference.State | None = None
        for segment in segments:
            phase = program_phase(segment)
            given = encoder_inputs(segment, request.pixels) if encode else None
            bindings = self._bindings(phase)

            def wanted(checkpoint_id: str, found: Bindings = bindings) -> bool:
                _, layer = split_id(checkpoint_id)
                return request.wants(found[checkpoint_id].checkpoint.name, layer)

            run = reference.run(
                self.manifest.graph,
                self.weights,
                np.asarray(segment.tokens),
                np.asarray(segment.positions),
                state,
                wanted,
                phase=phase,
                inputs=given,
            )
            state = run.state
            self._emit(segment, run.captures, bindings, sink)
        return self._body(request, segments)

    def _bindings(self, phase: str) -> dict[str, CheckpointBinding]:
        found: dict[str, CheckpointBinding] = {}
        for binding in self.manifest.checkpoints:
            if binding.phase != phase:
                continue
            key = binding.checkpoint.name
            if binding.checkpoint.role is not None:
                key = f"{key}.{binding.checkpoint.role}"
            for layer in binding.layers or (None,):
                found[key if layer is None else f"layer.{layer}.{key}"] = binding
        return found

    def _emit(
        self,
        segment: Segment,
        captures: Mapping[str, Array],
        bindings: Mapping[str, CheckpointBinding],
        sink: Sink,
    ) -> None:
        for order, (key, array) in enumerate(captures.items()):
            binding = bindings[key]
            _, layer = split_id(key)
            axes = binding.type.axes
            host = _rows(np.asarray(array), axes, segment)
            record = record_of(
                host,
                name=binding.checkpoint.name,
                layer=layer,
                phase=segment.phase,
                segment=segment.index,
                axes=axes,
                role=binding.checkpoint.role,
                order=order,
                version=binding.checkpoint.version,
            )
            sink.add(record, host)

    def _body(self, request: CaptureRequest, segments: tuple[Segment, ...]) -> Body:
        return Body(
            side="oracle",
            producer=Producer(
                name=self.name,
                version=str(self.manifest.circuit_version),
                dtype="f64",
                weight_dtypes={"float64": len(self.manifest.bindings)},
                settings={"arithmetic": "float64 definitions of the operators"},
                facts=dict(self.manifest.graph.dims),
            ),
            identity=msgspec.structs.replace(
                self.identity,
                circuit=f"{self.manifest.circuit}@{self.manifest.circuit_version}",
                manifest_sha256=canonical_sha256(self.manifest),
                tokens_sha256=tokens_sha256(request),
            ),
            segments=segments,
            records=(),
            cache_layout=CacheLayout(
                layout_id="reference.rows",
                layer_stride=None,
                head_stride=None,
                token_stride=None,
                channel_stride=None,
                capacity=None,
            ),
            threads=1,
            mesh={"devices": 1},
            environment={"python": platform.python_version(), "numpy": np.__version__},
            neutrality=Neutrality(
                status="not_applicable",
                control_equal=None,
                outputs_equal=None,
                mode="interpreter",
                compared_outputs=0,
            ),
        )


def _rows(array: Array, axes: tuple[str, ...], segment: Segment) -> Array:
    """Return integers as i32, and S cut to what is cached."""
    if array.dtype.kind in "iu":
        array = array.astype(np.int32)
    if "S" in axes:
        at = axes.index("S")
        count = max(segment.cache_token_count)
        array = np.take(array, range(min(count, array.shape[at])), axis=at)
    return np.ascontiguousarray(array)
