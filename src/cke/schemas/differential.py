"""The results of the five passes of differential verification; bounded, without payloads.

Nothing here claims that tensors are equal, that a first divergence is confirmed, or a cause.
"""

from typing import Annotated, Literal

from msgspec import Meta

from cke.schemas.execution_manifest import SCHEMA, Exact, Natural, Positive, Schema, Sha256
from cke.schemas.run_report import MAX_PREFIX

ContractVersion = Literal["differential_verification_contract_v1"]
CONTRACT: ContractVersion = "differential_verification_contract_v1"

Mode = Literal["backend_differential", "runtime_differential", "external_semantic"]
Submode = Literal[
    "runtime_regression",
    "determinism_check",
    "configuration_equivalence",
    "precision_policy_comparison",
]
Domain = Literal[
    "decode_policy", "tokenizer_boundary", "config_semantics", "numeric_policy", "oracle_scope"
]
Severity = Literal["block", "downgrade", "informational"]
Verdict = Literal["comparison_allowed", "limited_comparison_allowed", "comparison_blocked"]
Eligibility = Literal["comparable", "limited_comparison", "incompatible"]
Strength = Literal["no_comparison", "token_localization_only", "checkpoint_confirmation_allowed"]
PromptIdentity = Literal["array_equal", "digest_only", "unverified", "divergent"]
TokenStatus = Literal[
    "comparison_blocked_by_pass0",
    "token_equivalent_on_observed_range",
    "first_mismatch_found",
    "input_token_divergence",
    "selected_token_array_missing",
    "selected_token_identity_unverified",
    "unsupported_comparison",
    "inconclusive",
]
MismatchKind = Literal["token_id_mismatch", "length_mismatch_or_early_termination"]
Pass2Disposition = Literal[
    "ready",
    "not_required",
    "blocked_by_pass0",
    "blocked_by_evidence",
    "blocked_by_strength_limit",
]
ReproductionStatus = Literal[
    "reproduction_verified",
    "comparison_blocked_by_pass0",
    "token_localization_not_available",
    "no_mismatch_to_reproduce",
    "source_binding_inconsistent",
    "prefix_material_unavailable",
    "prefix_reproduction_failed",
    "decode_policy_reproduction_failed",
    "checkpoint_step_mapping_mismatch",
    "context_position_mismatch",
    "unsupported_reproduction_mode",
    "inconclusive",
]
Tier = Literal[
    "independent_rerun_verified", "original_pair_boundary_consistent", "reproduction_request_only"
]
LayerStatus = Literal[
    "observable_mismatch_found",
    "no_mismatch_in_captured_coverage",
    "comparison_blocked_by_pass2",
    "insufficient_common_coverage",
    "source_binding_inconsistent",
    "checkpoint_alignment_inconsistent",
    "checkpoint_artifact_missing",
    "checkpoint_summary_malformed",
    "comparison_policy_unavailable",
    "unsupported_checkpoint_layout",
    "inconclusive",
]
LayerDisposition = Literal["blocked", "exploratory_localization_only", "suspect_interval_available"]
StageStatus = Literal[
    "observable_intra_layer_mismatch_found",
    "mismatch_bounded_to_inherited_closing_boundary",
    "not_applicable",
    "comparison_blocked_by_pass3",
    "insufficient_common_intra_layer_coverage",
    "source_binding_inconsistent",
    "checkpoint_alignment_inconsistent",
    "checkpoint_summary_malformed",
    "comparison_policy_unavailable",
    "unsupported_parent",
    "unsupported_intra_layer_layout",
    "parent_revalidation_inconsistent",
]
StageDisposition = Literal[
    "suspect_interval_available", "not_applicable", "blocked", "unsupported", "inconclusive"
]
Text = Annotated[str, Meta(max_length=256)]
Codes = Annotated[tuple[Text, ...], Meta(max_length=32)]
Names = Annotated[tuple[Text, ...], Meta(max_length=8192)]


class Nonclaims(Exact, frozen=True, kw_only=True):
    """What a result does not say; every field is false."""

    tensor_equality: Literal[False] = False
    first_numeric_divergence_confirmed: Literal[False] = False
    first_operation_divergence_confirmed: Literal[False] = False
    root_cause_identified: Literal[False] = False
    complete_coverage: Literal[False] = False
    cross_backend_equivalence: Literal[False] = False
    cross_thread_count_equivalence: Literal[False] = False
    performance: Literal[False] = False


class Reason(Exact, frozen=True, kw_only=True):
    """One finding of the preflight."""

    code: Text
    domain: Domain
    severity: Severity


class Calibration(Exact, frozen=True, kw_only=True):
    """Pass 0: whether two runs may be compared, and how far."""

    schema: Schema = SCHEMA
    kind: Literal["calibration_preflight"] = "calibration_preflight"
    contract_version: ContractVersion = CONTRACT
    mode: Mode
    submode: Submode
    verdict: Verdict
    eligibility: Eligibility
    strength_limit: Strength
    prompt_identity: PromptIdentity
    reasons: Annotated[tuple[Reason, ...], Meta(max_length=32)]
    reference_report_sha256: Sha256
    candidate_report_sha256: Sha256
    nonclaims: Nonclaims = Nonclaims()


class Prefix(Exact, frozen=True, kw_only=True):
    """The selected tokens before the mismatch; long ones are bound and not embedded."""

    token_count: Natural
    token_ids_sha256: Sha256
    token_ids: Annotated[tuple[Natural, ...], Meta(max_length=MAX_PREFIX)] | None
    exact_source_required: bool


class TokenLocalization(Exact, frozen=True, kw_only=True):
    """Pass 1: the first selected token that differs."""

    schema: Schema = SCHEMA
    kind: Literal["token_localization"] = "token_localization"
    contract_version: ContractVersion = CONTRACT
    status: TokenStatus
    pass2_disposition: Pass2Disposition
    reasons: Codes
    mismatch_kind: MismatchKind | None = None
    generated_index: Natural | None = None
    runtime_checkpoint_step: Positive | None = None
    reference_token_id: Natural | None = None
    candidate_token_id: Natural | None = None
    prefix: Prefix | None = None
    compared_tokens: Natural
    pass0_sha256: Sha256
    reference_report_sha256: Sha256
    candidate_report_sha256: Sha256
    nonclaims: Nonclaims = Nonclaims()


class PrefixReproduction(Exact, frozen=True, kw_only=True):
    """Pass 2: whether independent runs reach the same boundary from the same prefix."""

    schema: Schema = SCHEMA
    kind: Literal["prefix_policy_reproduction"] = "prefix_policy_reproduction"
    contract_version: ContractVersion = CONTRACT
    status: ReproductionStatus
    tier: Tier
    reasons: Codes
    warnings: Codes
    generated_index: Natural | None
    runtime_checkpoint_step: Positive | None
    context_position: Natural | None
    strength_limit: Strength
    pass1_sha256: Sha256
    reference_report_sha256: Sha256 | None
    candidate_report_sha256: Sha256 | None
    nonclaims: Nonclaims = Nonclaims()


class Interval(Exact, frozen=True, kw_only=True):
    """Between the last equal and the first differing checkpoint, with what lies unobserved."""

    notation: Text
    lower: Text
    upper: Text
    unobserved: Names


class Comparison(Exact, frozen=True, kw_only=True):
    """One checkpoint of both sides: whether the digests are equal."""

    coordinate: Text
    digest_equal: bool


class Coverage(Exact, frozen=True, kw_only=True):
    """What both sides captured, and what one of them did."""

    common: Names
    reference_only: Names
    candidate_only: Names


class TraceSource(Exact, frozen=True, kw_only=True):
    """What a trace was bound to before its summaries were read."""

    trace_sha256: Sha256
    report_sha256: Sha256
    manifest_sha256: Sha256
    artifact_set_id: Text


class LayerLocalization(Exact, frozen=True, kw_only=True):
    """Pass 3: the earliest differing layer output within common coverage."""

    schema: Schema = SCHEMA
    kind: Literal["layer_localization"] = "layer_localization"
    contract_version: ContractVersion = CONTRACT
    status: LayerStatus
    disposition: LayerDisposition
    reasons: Codes
    model_family: Text | None = None
    runtime_checkpoint_step: Positive | None = None
    total_layer_count: Positive | None = None
    target_layer: Natural | None = None
    interval: Interval | None = None
    coverage: Coverage | None = None
    comparisons: Annotated[tuple[Comparison, ...], Meta(max_length=8192)] = ()
    pass2_sha256: Sha256
    reference: TraceSource | None = None
    candidate: TraceSource | None = None
    nonclaims: Nonclaims = Nonclaims()


class StageLocalization(Exact, frozen=True, kw_only=True):
    """Pass 4: the earliest differing stage of the bound layer within common coverage."""

    schema: Schema = SCHEMA
    kind: Literal["intra_layer_localization"] = "intra_layer_localization"
    contract_version: ContractVersion = CONTRACT
    contract_namespace: Literal["coverage_scoped_intra_layer_localization"] = (
        "coverage_scoped_intra_layer_localization"
    )
    status: StageStatus
    disposition: StageDisposition
    reason: Text
    secondary_reasons: Codes = ()
    target_layer: Natural | None = None
    interval: Interval | None = None
    coverage: Coverage | None = None
    comparisons: Annotated[tuple[Comparison, ...], Meta(max_length=32)] = ()
    pass2_sha256: Sha256 | None = None
    pass3a_sha256: Sha256 | None = None
    pass3b_sha256: Sha256 | None = None
    reference: TraceSource | None = None
    candidate: TraceSource | None = None
    nonclaims: Nonclaims = Nonclaims()
