"""The reason codes of Pass 4 with their statuses, and the statuses with their dispositions."""

from cke.errors import Diagnostic
from cke.schemas.differential import StageDisposition, StageStatus

REASONS: dict[str, StageStatus | None] = {
    "pass4.local_digest_mismatch": "observable_intra_layer_mismatch_found",
    "pass4.no_local_mismatch_before_inherited_boundary": (
        "mismatch_bounded_to_inherited_closing_boundary"
    ),
    "pass4.asymmetric_coverage_retained": None,
    "pass4.parent_missing": "comparison_blocked_by_pass3",
    "pass4.parent_blocked": "comparison_blocked_by_pass3",
    "pass4.parent_exploratory_only": "comparison_blocked_by_pass3",
    "pass4.parent_no_mismatch": "not_applicable",
    "pass4.parent_incoherent": "source_binding_inconsistent",
    "pass4.parent_contract_unsupported": "unsupported_parent",
    "pass4.parent_family_unsupported": "unsupported_parent",
    "pass4.discovery_rebound_layer": "parent_revalidation_inconsistent",
    "pass4.discovery_rebound_semantics_changed": "parent_revalidation_inconsistent",
    "pass4.trace_sha_mismatch": "source_binding_inconsistent",
    "pass4.source_role_mismatch": "source_binding_inconsistent",
    "pass4.run_report_binding_mismatch": "source_binding_inconsistent",
    "pass4.artifact_set_binding_mismatch": "source_binding_inconsistent",
    "pass4.semantic_manifest_binding_mismatch": "source_binding_inconsistent",
    "pass4.runtime_capture_identity_mismatch": "source_binding_inconsistent",
    "pass4.no_common_captured_coordinates": "insufficient_common_intra_layer_coverage",
    "pass4.step_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.layer_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.phase_or_position_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.shape_or_count_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.dtype_or_precision_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.stage_role_or_order_alignment_mismatch": "checkpoint_alignment_inconsistent",
    "pass4.coverage_partition_malformed": "checkpoint_summary_malformed",
    "pass4.duplicate_or_out_of_order_coordinate": "checkpoint_summary_malformed",
    "pass4.summary_field_malformed": "checkpoint_summary_malformed",
    "pass4.digest_field_malformed": "checkpoint_summary_malformed",
    "pass4.prohibited_payload_present": "checkpoint_summary_malformed",
    "pass4.digest_contract_unknown": "comparison_policy_unavailable",
    "pass4.digest_policy_unsupported": "comparison_policy_unavailable",
    "pass4.phase_unsupported": "unsupported_intra_layer_layout",
    "pass4.intra_layout_unsupported": "unsupported_intra_layer_layout",
    "pass4.taxonomy_unsupported": "unsupported_intra_layer_layout",
    "pass4.requested_stage_set_unsupported": "unsupported_intra_layer_layout",
}
"""Every code with the status it gives as the primary reason; None is secondary only."""

DISPOSITIONS: dict[StageStatus, StageDisposition] = {
    "observable_intra_layer_mismatch_found": "suspect_interval_available",
    "mismatch_bounded_to_inherited_closing_boundary": "suspect_interval_available",
    "not_applicable": "not_applicable",
    "comparison_blocked_by_pass3": "blocked",
    "insufficient_common_intra_layer_coverage": "blocked",
    "source_binding_inconsistent": "blocked",
    "checkpoint_alignment_inconsistent": "blocked",
    "checkpoint_summary_malformed": "blocked",
    "comparison_policy_unavailable": "blocked",
    "unsupported_parent": "unsupported",
    "unsupported_intra_layer_layout": "unsupported",
    "parent_revalidation_inconsistent": "inconclusive",
}


def structure_reason(diagnostic: Diagnostic) -> str:
    """Return the code of what a reader refused, by where and why."""
    where, message = str(diagnostic.path), diagnostic.message
    if "prohibited" in message or "absolute path" in message:
        return "pass4.prohibited_payload_present"
    if "ordered part" in message or ("in order" in message and where == "$.intra_layer_trace"):
        return "pass4.duplicate_or_out_of_order_coordinate"
    if "coordinates" in where:
        return "pass4.coverage_partition_malformed"
    if ".digest" in where:
        return "pass4.digest_field_malformed"
    return "pass4.summary_field_malformed"
