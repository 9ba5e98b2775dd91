"""Pass 1: the first selected token that differs between two comparable runs."""

from collections.abc import Sequence

import msgspec

from cke.artifacts.fingerprints import ids_sha, struct_sha, token_digest
from cke.artifacts.pass0 import is_coherent
from cke.artifacts.reading import Loaded
from cke.artifacts.stages import FAMILIES
from cke.schemas.differential import (
    Calibration,
    Pass2Disposition,
    Prefix,
    TokenLocalization,
    TokenStatus,
)
from cke.schemas.run_report import MAX_PREFIX, Report, RunReport

DISPOSITIONS: dict[TokenStatus, Pass2Disposition] = {
    "comparison_blocked_by_pass0": "blocked_by_pass0",
    "token_equivalent_on_observed_range": "not_required",
    "first_mismatch_found": "ready",
    "input_token_divergence": "blocked_by_evidence",
    "selected_token_array_missing": "blocked_by_evidence",
    "selected_token_identity_unverified": "blocked_by_evidence",
    "unsupported_comparison": "blocked_by_evidence",
    "inconclusive": "blocked_by_evidence",
}
"""What a status means for Pass 2; a mismatch may still be blocked by the strength limit."""

SUPPORTED = frozenset(FAMILIES.values())


def localize_tokens(
    calibration: Calibration, reference: Loaded[RunReport], candidate: Loaded[RunReport]
) -> TokenLocalization:
    """Return the first difference of the selected tokens, or why there is none to name."""
    gate = _gate(calibration, reference, candidate)
    if gate is not None:
        return _result(calibration, *gate, reference=reference, candidate=candidate)
    one, two = (item.value.report.selected_token_ids for item in (reference, candidate))
    index = first_difference(one, two)
    if index is None:
        status: TokenStatus = "token_equivalent_on_observed_range"
        found = _result(calibration, status, (), reference=reference, candidate=candidate)
        return msgspec.structs.replace(found, compared_tokens=len(one))
    found = _result(
        calibration, "first_mismatch_found", (), reference=reference, candidate=candidate
    )
    inside = index < min(len(one), len(two))
    limited = calibration.strength_limit != "checkpoint_confirmation_allowed"
    return msgspec.structs.replace(
        found,
        pass2_disposition="blocked_by_strength_limit" if limited else "ready",
        mismatch_kind=("token_id_mismatch" if inside else "length_mismatch_or_early_termination"),
        generated_index=index,
        runtime_checkpoint_step=index + 1,
        reference_token_id=one[index] if index < len(one) else None,
        candidate_token_id=two[index] if index < len(two) else None,
        prefix=prefix_of(one[:index]),
        compared_tokens=min(len(one), len(two)),
    )


def first_difference(one: Sequence[int], two: Sequence[int]) -> int | None:
    """Return the first index at which the arrays differ; a shorter one differs at its end."""
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(two) else min(len(one), len(two))


def prefix_of(ids: Sequence[int]) -> Prefix:
    """Return the bound prefix; at most 64 tokens are embedded."""
    embedded = len(ids) <= MAX_PREFIX
    return Prefix(
        token_count=len(ids),
        token_ids_sha256=ids_sha(ids),
        token_ids=tuple(ids) if embedded else None,
        exact_source_required=not embedded,
    )


def _gate(
    calibration: Calibration, reference: Loaded[RunReport], candidate: Loaded[RunReport]
) -> tuple[TokenStatus, tuple[str, ...]] | None:
    if not is_coherent(calibration):
        return "inconclusive", ("pass0_incoherent",)
    bound = (calibration.reference_report_sha256, calibration.candidate_report_sha256)
    if bound != (reference.sha256, candidate.sha256):
        return "inconclusive", ("source_binding_inconsistent",)
    if calibration.prompt_identity == "divergent":
        return "input_token_divergence", ("input_token_divergence",)
    if calibration.verdict == "comparison_blocked":
        blocks = tuple(item.code for item in calibration.reasons if item.severity == "block")
        return "comparison_blocked_by_pass0", blocks
    for loaded in (reference, candidate):
        manifest, body = loaded.value.manifest, loaded.value.report
        if body.execution_status != "ok":
            return "unsupported_comparison", ("execution_not_ok",)
        if manifest.model.family not in SUPPORTED:
            return "unsupported_comparison", ("family_unsupported",)
        if manifest.runtime.batch_size != 1:
            return "unsupported_comparison", ("batch_unsupported",)
        if not body.selected_token_ids:
            return "selected_token_array_missing", ("selected_token_array_missing",)
        if not _tokens_verified(body):
            return "selected_token_identity_unverified", ("selected_token_digest_mismatch",)
    return None


def _tokens_verified(body: Report) -> bool:
    digest = token_digest(body.selected_token_ids)
    return (len(body.selected_token_ids), digest) == (
        body.selected_token_count,
        body.selected_token_digest,
    )


def _result(
    calibration: Calibration,
    status: TokenStatus,
    reasons: tuple[str, ...],
    *,
    reference: Loaded[RunReport],
    candidate: Loaded[RunReport],
) -> TokenLocalization:
    return TokenLocalization(
        status=status,
        pass2_disposition=DISPOSITIONS[status],
        reasons=reasons[:32],
        compared_tokens=0,
        pass0_sha256=struct_sha(calibration),
        reference_report_sha256=reference.sha256,
        candidate_report_sha256=candidate.sha256,
    )
