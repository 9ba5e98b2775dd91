"""The decode trace: how each token of one execution was selected."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cke.schemas.execution_manifest import (
    SCHEMA,
    ArtifactSetId,
    Exact,
    ExecutionManifest,
    Natural,
    Schema,
    Wire,
)
from cke.schemas.run_report import StopReason

LIS_TRACE_TOPK_SIZE = 5
"""The most entries of `topk`; no flag, variable or config changes it."""

DecisionClass = Literal["greedy", "structural_suppression", "repetition_penalty_shifted"]


class Choice(Exact, frozen=True, kw_only=True):
    """One of the best tokens of a step, by adjusted score; suppressed tokens are left out."""

    token_id: Natural
    raw_score: float
    adjusted_score: float
    is_selected: bool


class Decision(Wire, frozen=True, kw_only=True):
    """One selected token."""

    step: Natural
    phase: Literal["first_decode", "decode"]
    selected_token_id: Natural
    raw_score_selected: float
    adjusted_score_selected: float
    runner_up_token_id: Natural | None
    runner_up_adjusted_score: float | None
    decision_margin: float | None
    structural_suppression_affected: bool
    repetition_penalty_changed_selection: bool
    selected_token_penalized: bool
    suppressed_token_count: Natural
    penalized_token_count: Natural
    decision_class: DecisionClass
    topk: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=LIS_TRACE_TOPK_SIZE)]
    stop_reason: StopReason | UnsetType = UNSET


class DecodeTrace(Wire, frozen=True, kw_only=True):
    """The document of `--trace-json`."""

    schema: Schema = SCHEMA
    kind: Literal["decode_trace"] = "decode_trace"
    artifact_set_id: ArtifactSetId | UnsetType = UNSET
    manifest: ExecutionManifest
    decode_trace: tuple[Decision, ...]
