"""The layer trace: summaries of layer outputs, and of one layer's stages where they were asked for.

No struct of this module can hold a tensor.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from cke.schemas.execution_manifest import (
    SCHEMA,
    ArtifactSetId,
    Exact,
    ExecutionManifest,
    Name,
    Natural,
    Positive,
    Schema,
    Wire,
)

LIS_LAYER_TRACE_HARD_MAX = 8192
"""The most records of one capture; no flag, variable or config changes it."""

MAX_RANK = 4
LAYER_DOMAIN: Final = "lis.checkpoint.fp32le/v1"
INTRA_DOMAIN: Final = "lis.checkpoint.intra_layer.fp32le/v1"
TAXONOMY: Final = "lis.llama.intra_layer_stages/v1"
LAYER_LAYOUT: Final = "llama_layer_output_summary"
INTRA_LAYOUT: Final = "llama_intra_layer_summary"
LAYER_ROLE = "layer_output"

SHA_VALUE = "^sha256:[0-9a-f]{64}$"
Flag = Annotated[int, Meta(ge=0, le=1)]
Shape = Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=MAX_RANK)]
Detail = Annotated[str, Meta(max_length=256)]
Phase = Literal["prefill", "decode"]
SummaryFields = tuple[Literal["min", "max", "mean", "l2", "nan", "inf", "digest"], ...]
SUMMARY_FIELDS: SummaryFields = ("min", "max", "mean", "l2", "nan", "inf", "digest")
MissingState = Literal["not_captured", "unsupported", "malformed", "unexpectedly_absent"]


class DigestContract(Exact, frozen=True, kw_only=True):
    """How the elements of an entry were hashed."""

    algorithm: Literal["sha256"] = "sha256"
    version: Literal["lis.checkpoint.fp32le/v1", "lis.checkpoint.intra_layer.fp32le/v1"]
    observed_dtype: Literal["fp32"] = "fp32"
    byte_order: Literal["little"] = "little"
    canonicalization: Literal["ieee754-binary32-le;canonical-qnan;preserve-signed-zero"] = (
        "ieee754-binary32-le;canonical-qnan;preserve-signed-zero"
    )


class Digest(Exact, frozen=True, kw_only=True):
    """The digest of one entry with its contract; the stage's role is part of what is hashed."""

    algorithm: Literal["sha256"] = "sha256"
    version: Literal["lis.checkpoint.fp32le/v1", "lis.checkpoint.intra_layer.fp32le/v1"]
    tensor_role: Name
    shape: Shape
    observed_dtype: Literal["fp32"] = "fp32"
    byte_order: Literal["little"] = "little"
    canonicalization: Literal["ieee754-binary32-le;canonical-qnan;preserve-signed-zero"] = (
        "ieee754-binary32-le;canonical-qnan;preserve-signed-zero"
    )
    value: Annotated[str, Meta(pattern=SHA_VALUE)]


class Missing(Exact, frozen=True, kw_only=True):
    """A coordinate that was asked for and is not there, and why."""

    coordinate: Name
    state: MissingState
    detail: Detail


class LayerEntry(Wire, frozen=True, kw_only=True):
    """The summary of one layer's output; legacy entries end after `inf`."""

    step: Natural
    phase: Phase
    name: Name
    shape: Shape
    min: float | None
    max: float | None
    mean: float | None
    l2: float | None
    nan: Flag
    inf: Flag
    runtime_checkpoint_step: Natural | UnsetType = UNSET
    layer_index: Natural | UnsetType = UNSET
    tensor_role: Literal["layer_output"] | UnsetType = UNSET
    batch_index: Natural | UnsetType = UNSET
    sequence_index: Natural | UnsetType = UNSET
    stage_order: Natural | UnsetType = UNSET
    execution_ordinal: Natural | UnsetType = UNSET
    observed_dtype: Literal["fp32"] | UnsetType = UNSET
    element_count: Positive | UnsetType = UNSET
    available_summary_fields: SummaryFields | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


class LayerLayout(Wire, frozen=True, kw_only=True):
    """What was asked for, what is there, and in which order: the layout of layer outputs."""

    layout_name: Literal["llama_layer_output_summary"] = LAYER_LAYOUT
    layout_version: Literal[1] = 1
    runtime_checkpoint_step: Natural
    tensor_role: Literal["layer_output"] = "layer_output"
    stage_order: Annotated[int, Meta(ge=0, le=0)] = 0
    ordering_semantics: Literal["runtime_step_layer_stage_ordinal"] = (
        "runtime_step_layer_stage_ordinal"
    )
    total_layer_count: Positive
    requested_coordinates: tuple[Name, ...]
    captured_coordinates: tuple[Name, ...]
    missing_coordinates: tuple[Missing, ...]
    available_summary_fields: SummaryFields
    digest_contract: DigestContract
    duplicate_coordinate_policy: Literal["reject_artifact_before_write"] = (
        "reject_artifact_before_write"
    )


class IntraEntry(Exact, frozen=True, kw_only=True):
    """The summary of one stage of the target layer: an exact key set."""

    runtime_checkpoint_step: Positive
    phase: Literal["decode"]
    layer_index: Natural
    stage_id: Name
    tensor_role: Name
    public_name: Annotated[str, Meta(min_length=1, max_length=128)]
    batch_index: Annotated[int, Meta(ge=0, le=0)] = 0
    sequence_index: Annotated[int, Meta(ge=0, le=0)] = 0
    token_position: Natural
    stage_order: Natural
    execution_ordinal: Natural
    shape: Shape
    observed_dtype: Literal["fp32"] = "fp32"
    precision_path: Name
    element_count: Positive
    available_summary_fields: SummaryFields
    min: float | None
    max: float | None
    mean: float | None
    l2: float | None
    nan: Flag
    inf: Flag
    digest: Digest


class IntraLayout(Exact, frozen=True, kw_only=True):
    """The fixed request of 17 stages of one layer at one decode step: an exact key set."""

    layout_name: Literal["llama_intra_layer_summary"] = INTRA_LAYOUT
    layout_version: Literal[1] = 1
    model_family: Literal["llama3_decoder"] = "llama3_decoder"
    stage_taxonomy: Literal["lis.llama.intra_layer_stages/v1"] = TAXONOMY
    runtime_checkpoint_step: Positive
    phase: Literal["decode"] = "decode"
    target_layer: Natural
    batch_index: Annotated[int, Meta(ge=0, le=0)] = 0
    sequence_index: Annotated[int, Meta(ge=0, le=0)] = 0
    token_position: Natural
    ordering_semantics: Literal["runtime_step_layer_stage_ordinal"] = (
        "runtime_step_layer_stage_ordinal"
    )
    duplicate_coordinate_policy: Literal["reject_artifact_before_write"] = (
        "reject_artifact_before_write"
    )
    requested_coordinates: tuple[Name, ...]
    captured_coordinates: tuple[Name, ...]
    missing_coordinates: tuple[Missing, ...]
    available_summary_fields: SummaryFields
    digest_contract: DigestContract
    full_tensor_payload_allowed: Literal[False] = False


class LayerTrace(Wire, frozen=True, kw_only=True):
    """The document of `--layer-trace-json`; without a layout it is a legacy trace."""

    schema: Schema = SCHEMA
    kind: Literal["layer_trace"] = "layer_trace"
    artifact_set_id: ArtifactSetId | UnsetType = UNSET
    manifest: ExecutionManifest
    checkpoint_layout: LayerLayout | UnsetType = UNSET
    layer_trace: tuple[LayerEntry, ...]
    intra_layer_checkpoint_layout: IntraLayout | UnsetType = UNSET
    intra_layer_trace: tuple[IntraEntry, ...] | UnsetType = UNSET
