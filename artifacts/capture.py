"""Recorders of one run's checkpoints. A failure is sticky: nothing is written after it.

The layer recorder takes summaries of layer outputs; the stage recorder resolves the 17 stages of
one layer, strictly in order.
"""

import msgspec

from cke.artifacts.digests import StageContext, layer_digest, stage_digest
from cke.artifacts.engine import Observation
from cke.artifacts.refusal import ArtifactError, refuse_capture
from cke.artifacts.stages import (
    LOCALISED,
    PUBLIC_NAMES,
    STAGE_IDS,
    layer_coordinate,
    requested_layers,
)
from cke.schemas.layer_trace import (
    INTRA_DOMAIN,
    LAYER_DOMAIN,
    LAYER_ROLE,
    LIS_LAYER_TRACE_HARD_MAX,
    SUMMARY_FIELDS,
    Digest,
    DigestContract,
    IntraEntry,
    IntraLayout,
    LayerEntry,
    LayerLayout,
    Missing,
    MissingState,
    Phase,
)

RECORD_BYTES = 16 << 10
DETAIL_BYTES = 256
Aggregates = tuple[float | None, float | None, float | None, float | None, int, int]


def six_digits(observation: Observation) -> Aggregates:
    """Return the summary as it is written: six digits, null aggregates where a flag is set."""
    low, high, mean, l2, nan, inf = observation.summary
    if nan or inf:
        return None, None, None, None, int(nan), int(inf)
    return (_six(low), _six(high), _six(mean), _six(l2), 0, 0)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


class _Sticky:
    """Keeps the first failure; every later call meets it again."""

    failure: str | None = None

    def fail(self, reason: str) -> None:
        """Note the failure, after which nothing is recorded."""
        self.failure = reason

    def check(self) -> None:
        """Raise when anything has failed."""
        if self.failure is not None:
            refuse_capture(self.failure)


class LayerRecorder(_Sticky):
    """Summaries of layer outputs at one runtime step, in order of execution."""

    def __init__(self, family: str, total_layers: int, step: int) -> None:
        self.step = step
        self.total = total_layers
        self.versioned = family in LOCALISED
        self.requested = requested_layers(total_layers)
        self.entries: list[LayerEntry] = []
        if total_layers == 0:
            self.fail("layer checkpoints expect a model with layers")

    def append(
        self, layer: int, observation: Observation, *, step: int, role: str = LAYER_ROLE
    ) -> LayerEntry | None:
        """Keep the summary of a layer's output; a refused one makes the recorder fail."""
        if self.failure is not None:
            return None
        try:
            reason = self._problem(layer, observation, step, role)
            entry = self._entry(layer, observation) if reason is None else None
        except ArtifactError as error:
            reason, entry = error.diagnostics[0].message, None
        if entry is None:
            self.fail(str(reason))
            return None
        self.entries.append(entry)
        return entry

    def _problem(self, layer: int, observation: Observation, step: int, role: str) -> str | None:
        names = [entry.name for entry in self.entries]
        if len(self.entries) >= LIS_LAYER_TRACE_HARD_MAX:
            return f"the layer trace overflows: at most {LIS_LAYER_TRACE_HARD_MAX} records"
        if not 0 <= layer < self.total:
            return f"layer {layer} is not one of {self.total} layers"
        if layer_coordinate(layer) in names:
            return f"layer {layer} was captured twice"
        if names and layer < int(names[-1].split(".")[1]):
            return f"layer {layer} was captured out of order"
        if step != self.step:
            return f"expected checkpoints of step {self.step}, got step {step}"
        if role != LAYER_ROLE:
            return f"expected checkpoints of `{LAYER_ROLE}`, got `{role}`"
        if self.versioned and layer not in self.requested:
            return f"layer {layer} was not asked for"
        return None

    def _entry(self, layer: int, observation: Observation) -> LayerEntry:
        value = layer_digest(observation.elements, observation.shape, LAYER_ROLE)
        low, high, mean, l2, nan, inf = six_digits(observation)
        phase: Phase = "prefill" if self.step == 0 else "decode"
        legacy = LayerEntry(
            step=self.step,
            phase=phase,
            name=layer_coordinate(layer),
            shape=observation.shape,
            min=low,
            max=high,
            mean=mean,
            l2=l2,
            nan=nan,
            inf=inf,
        )
        if not self.versioned:
            return legacy
        return msgspec.structs.replace(
            legacy,
            runtime_checkpoint_step=self.step,
            layer_index=layer,
            tensor_role="layer_output",
            batch_index=0,
            sequence_index=0,
            stage_order=0,
            execution_ordinal=self.requested.index(layer),
            observed_dtype="fp32",
            element_count=observation.elements.size,
            available_summary_fields=SUMMARY_FIELDS,
            digest=Digest(
                version=LAYER_DOMAIN,
                tensor_role=LAYER_ROLE,
                shape=observation.shape,
                value=value,
            ),
        )

    def layout(self) -> LayerLayout | msgspec.UnsetType:
        """Return the coverage of the run; a family that is not localised has none."""
        self.check()
        if not self.versioned:
            return msgspec.UNSET
        captured = tuple(entry.name for entry in self.entries)
        requested = tuple(map(layer_coordinate, self.requested))
        return LayerLayout(
            runtime_checkpoint_step=self.step,
            total_layer_count=self.total,
            requested_coordinates=requested,
            captured_coordinates=captured,
            missing_coordinates=tuple(
                Missing(coordinate=name, state="not_captured", detail="not observed at this step")
                for name in requested
                if name not in captured
            ),
            available_summary_fields=SUMMARY_FIELDS,
            digest_contract=DigestContract(version=LAYER_DOMAIN),
        )


class StageRecorder(_Sticky):
    """The 17 stages of one layer at one decode step, each captured or missing."""

    def __init__(self, *, layer: int, step: int, position: int, precision_path: str) -> None:
        self.layer = layer
        self.step = step
        self.position = position
        self.precision_path = precision_path
        self.entries: list[IntraEntry] = []
        self.missing: list[Missing] = []

    @property
    def resolved(self) -> int:
        """How many stages are captured or missing."""
        return len(self.entries) + len(self.missing)

    def capture(self, stage: str, observation: Observation) -> None:
        """Resolve a stage with what was observed."""
        if not self._next(stage):
            return
        try:
            entry = self._entry(stage, observation)
        except ArtifactError as error:
            self.fail(error.diagnostics[0].message)
            return
        if len(msgspec.json.encode(entry)) > RECORD_BYTES:
            self.fail(f"the record of `{stage}` is larger than {RECORD_BYTES} bytes")
            return
        self.entries.append(entry)

    def miss(self, stage: str, state: MissingState, detail: str) -> None:
        """Resolve a stage that is not there."""
        if not self._next(stage):
            return
        if len(detail.encode()) > DETAIL_BYTES:
            self.fail(f"the detail of `{stage}` is longer than {DETAIL_BYTES} bytes")
            return
        self.missing.append(Missing(coordinate=stage, state=state, detail=detail))

    def _next(self, stage: str) -> bool:
        if self.failure is not None:
            return False
        expected = STAGE_IDS[self.resolved] if self.resolved < len(STAGE_IDS) else "no stage"
        if stage != expected:
            self.fail(f"stages are resolved in order: expected `{expected}`, got `{stage}`")
        return self.failure is None

    def _entry(self, stage: str, observation: Observation) -> IntraEntry:
        order = STAGE_IDS.index(stage)
        context = StageContext(
            precision_path=self.precision_path,
            phase="decode",
            step=self.step,
            layer=self.layer,
            stage_id=stage,
            tensor_role=stage,
            token_position=self.position,
            stage_order=order,
            execution_ordinal=order,
        )
        low, high, mean, l2, nan, inf = six_digits(observation)
        return IntraEntry(
            runtime_checkpoint_step=self.step,
            phase="decode",
            layer_index=self.layer,
            stage_id=stage,
            tensor_role=stage,
            public_name=PUBLIC_NAMES[stage],
            token_position=self.position,
            stage_order=order,
            execution_ordinal=order,
            shape=observation.shape,
            precision_path=self.precision_path,
            element_count=observation.elements.size,
            available_summary_fields=SUMMARY_FIELDS,
            min=low,
            max=high,
            mean=mean,
            l2=l2,
            nan=nan,
            inf=inf,
            digest=Digest(
                version=INTRA_DOMAIN,
                tensor_role=stage,
                shape=observation.shape,
                value=stage_digest(observation.elements, observation.shape, context),
            ),
        )

    def layout(self) -> IntraLayout:
        """Return the coverage; every stage must be resolved."""
        self.check()
        if self.resolved != len(STAGE_IDS):
            refuse_capture(f"expected {len(STAGE_IDS)} resolved stages, got {self.resolved}")
        return IntraLayout(
            runtime_checkpoint_step=self.step,
            target_layer=self.layer,
            token_position=self.position,
            requested_coordinates=STAGE_IDS,
            captured_coordinates=tuple(entry.stage_id for entry in self.entries),
            missing_coordinates=tuple(self.missing),
            available_summary_fields=SUMMARY_FIELDS,
            digest_contract=DigestContract(version=INTRA_DOMAIN),
        )
