"""Pass 4: the earliest differing stage of the layer that Pass 3B has bound.

Checks run in a fixed precedence: parents, their outcome, drift, source bindings, support by names
(the digest contract's among them), structure, common coverage, alignment, and then the digests.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cke.artifacts.fingerprints import struct_sha
from cke.artifacts.pass3 import common_coverage
from cke.artifacts.pass4_reasons import DISPOSITIONS, REASONS, structure_reason
from cke.artifacts.reading import load_layer_trace
from cke.artifacts.sources import TRACE_PATH, Bound, Side, bind
from cke.artifacts.stages import CLOSING_BOUNDARY, ENTRY_BOUNDARY, LOCALISED, STAGE_IDS
from cke.errors import CkeError
from cke.schemas.differential import (
    CONTRACT,
    Comparison,
    Interval,
    LayerLocalization,
    PrefixReproduction,
    StageLocalization,
)
from cke.schemas.layer_trace import (
    INTRA_DOMAIN,
    INTRA_LAYOUT,
    TAXONOMY,
    IntraEntry,
    IntraLayout,
    LayerTrace,
)

PROFILE = "semantic_layer_and_intra_v1"
BINDING_REASONS = {
    "trace_missing": "pass4.runtime_capture_identity_mismatch",
    "run_report": "pass4.run_report_binding_mismatch",
    "artifact_set": "pass4.artifact_set_binding_mismatch",
    "semantic_manifest": "pass4.semantic_manifest_binding_mismatch",
    "step": "pass4.step_alignment_mismatch",
    "trace_sha": "pass4.trace_sha_mismatch",
}
RUNS = (
    "original_reference",
    "original_candidate",
    "reproduction_reference",
    "reproduction_candidate",
)


class Recapture(msgspec.Struct, frozen=True):
    """The four fresh runs by their role, each on the semantic intra-layer profile."""

    runs: Mapping[str, Side]


class Parents(msgspec.Struct, frozen=True):
    """Pass 3A for provenance, and Pass 2 and Pass 3B of the recapture for authority."""

    discovery: LayerLocalization | None
    reproduction: PrefixReproduction | None
    authority: LayerLocalization | None


def localize_stages(parents: Parents, recapture: Recapture) -> StageLocalization:
    """Return the interval of stages that holds the earliest observed difference."""
    reason = next(_parent_reasons(parents), None) or next(_drift(parents), None)
    if reason is not None:
        return _result(parents, reason)
    discovery, authority = parents.discovery, parents.authority
    assert discovery is not None, "the parents have been checked"
    assert authority is not None, "the parents have been checked"
    bound = _bind_all(parents, recapture)
    if isinstance(bound, str):
        return _result(parents, bound)
    reason = next((found for item in bound for found in _support(item.trace)), None)
    if reason is not None:
        return _result(parents, reason)
    try:
        traces = [load_layer_trace(item.trace, TRACE_PATH).value for item in bound]
    except CkeError as error:
        return _result(parents, structure_reason(error.diagnostics[0]))
    return _compare(parents, traces, bound)


def _parent_reasons(parents: Parents) -> Iterator[str]:
    """Coherence of the parents first, then what they found."""
    authority, reproduction = parents.authority, parents.reproduction
    if authority is None or reproduction is None or parents.discovery is None:
        yield "pass4.parent_missing"
        return
    if authority.contract_version != CONTRACT:
        yield "pass4.parent_contract_unsupported"
    if authority.pass2_sha256 != struct_sha(reproduction):
        yield "pass4.parent_incoherent"
    if struct_sha(authority) == struct_sha(parents.discovery):
        yield "pass4.parent_missing"
    if authority.status == "no_mismatch_in_captured_coverage":
        yield "pass4.parent_no_mismatch"
    if authority.status == "unsupported_checkpoint_layout":
        yield "pass4.parent_family_unsupported"
    if authority.status != "observable_mismatch_found":
        yield "pass4.parent_blocked"
    if authority.model_family not in LOCALISED:
        yield "pass4.parent_family_unsupported"
    if authority.disposition != "suspect_interval_available":
        yield "pass4.parent_exploratory_only"


def _drift(parents: Parents) -> Iterator[str]:
    discovery, authority = parents.discovery, parents.authority
    assert discovery is not None, "the parents have been checked"
    assert authority is not None, "the parents have been checked"
    if discovery.target_layer != authority.target_layer:
        yield "pass4.discovery_rebound_layer"
    if (discovery.runtime_checkpoint_step, discovery.total_layer_count, discovery.interval) != (
        authority.runtime_checkpoint_step,
        authority.total_layer_count,
        authority.interval,
    ):
        yield "pass4.discovery_rebound_semantics_changed"


def _bind_all(parents: Parents, recapture: Recapture) -> tuple[Bound, Bound] | str:
    """Bind the four runs; the reproduction pair must be the one that Pass 3B has read."""
    authority, reproduction = parents.authority, parents.reproduction
    assert authority is not None, "the parents have been checked"
    assert reproduction is not None, "the parents have been checked"
    if tuple(recapture.runs) != RUNS:
        return "pass4.source_role_mismatch"
    identities = {side.report.value.artifact_set_id for side in recapture.runs.values()}
    if len(identities) != len(RUNS):
        return "pass4.source_role_mismatch"
    found: dict[str, Bound] = {}
    for name, side in recapture.runs.items():
        role = name.partition("_")[2]
        if side.role != role:
            return "pass4.source_role_mismatch"
        original = name.startswith("original")
        report = side.report.sha256 if original else getattr(reproduction, f"{role}_report_sha256")
        item = bind(side, report, authority.runtime_checkpoint_step)
        if isinstance(item, str):
            return BINDING_REASONS[item]
        source = getattr(authority, role)
        if not original and item.source != source:
            return "pass4.trace_sha_mismatch"
        runtime = side.report.value.manifest.runtime
        if (runtime.diagnostic_capture_profile, runtime.intra_layer_target_layer) != (
            PROFILE,
            authority.target_layer,
        ):
            return "pass4.runtime_capture_identity_mismatch"
        found[name] = item
    return found[RUNS[2]], found[RUNS[3]]


def _support(trace: dict[str, Any]) -> Iterator[str]:
    """Refuse a layout that is not the one known, by its names alone."""
    layout = trace.get("intra_layer_checkpoint_layout")
    if not isinstance(layout, dict):
        yield "pass4.intra_layout_unsupported"
        return
    if (layout.get("layout_name"), layout.get("layout_version")) != (INTRA_LAYOUT, 1):
        yield "pass4.intra_layout_unsupported"
    if layout.get("stage_taxonomy") != TAXONOMY:
        yield "pass4.taxonomy_unsupported"
    if layout.get("phase") != "decode":
        yield "pass4.phase_unsupported"
    if layout.get("requested_coordinates") != list(STAGE_IDS):
        yield "pass4.requested_stage_set_unsupported"
    contract = layout.get("digest_contract")
    if not isinstance(contract, dict) or contract.get("version") != INTRA_DOMAIN:
        yield "pass4.digest_contract_unknown"
    elif contract.get("algorithm") != "sha256":
        yield "pass4.digest_policy_unsupported"


def _compare(
    parents: Parents, traces: Sequence[LayerTrace], bound: tuple[Bound, Bound]
) -> StageLocalization:
    first, second = map(_layout, traces)
    coverage = common_coverage(first.captured_coordinates, second.captured_coordinates)
    if not coverage.common:
        return _result(parents, "pass4.no_common_captured_coordinates")
    left, right = (_entries(trace) for trace in traces)
    pairs = [(left[name], right[name]) for name in coverage.common]
    reason = next(_alignment(first, second, parents), None) or next(_misplaced(pairs), None)
    if reason is not None:
        return _result(parents, reason)
    comparisons = tuple(
        Comparison(coordinate=one.stage_id, digest_equal=one.digest == two.digest)
        for one, two in pairs
    )
    differs = any(not item.digest_equal for item in comparisons)
    asymmetric = bool(coverage.reference_only or coverage.candidate_only)
    reason = (
        "pass4.local_digest_mismatch"
        if differs
        else "pass4.no_local_mismatch_before_inherited_boundary"
    )
    return msgspec.structs.replace(
        _result(parents, reason),
        secondary_reasons=("pass4.asymmetric_coverage_retained",) if asymmetric else (),
        interval=stage_interval(comparisons),
        coverage=coverage,
        comparisons=comparisons,
        reference=bound[0].source,
        candidate=bound[1].source,
    )


def _layout(trace: LayerTrace) -> IntraLayout:
    layout = trace.intra_layer_checkpoint_layout
    assert isinstance(layout, IntraLayout), "support has been checked"
    return layout


def _entries(trace: LayerTrace) -> dict[str, IntraEntry]:
    entries = trace.intra_layer_trace
    assert not isinstance(entries, msgspec.UnsetType), "the layout has been checked"
    return {entry.stage_id: entry for entry in entries}


def _alignment(one: IntraLayout, two: IntraLayout, parents: Parents) -> Iterator[str]:
    authority, reproduction = parents.authority, parents.reproduction
    assert authority is not None, "the parents have been checked"
    assert reproduction is not None, "the parents have been checked"
    for layout in (one, two):
        if layout.runtime_checkpoint_step != authority.runtime_checkpoint_step:
            yield "pass4.step_alignment_mismatch"
        if layout.target_layer != authority.target_layer:
            yield "pass4.layer_alignment_mismatch"
        if layout.token_position != reproduction.context_position:
            yield "pass4.phase_or_position_alignment_mismatch"


def _misplaced(pairs: Sequence[tuple[IntraEntry, IntraEntry]]) -> Iterator[str]:
    for one, two in pairs:
        if (one.shape, one.element_count) != (two.shape, two.element_count):
            yield "pass4.shape_or_count_alignment_mismatch"
        if (one.observed_dtype, one.precision_path) != (two.observed_dtype, two.precision_path):
            yield "pass4.dtype_or_precision_alignment_mismatch"
        if (one.tensor_role, one.stage_order) != (two.tensor_role, two.stage_order):
            yield "pass4.stage_role_or_order_alignment_mismatch"


def stage_interval(comparisons: Sequence[Comparison]) -> Interval:
    """Return the interval that ends at the first difference, or at the inherited boundary."""
    lower = ENTRY_BOUNDARY
    for item in comparisons:
        if not item.digest_equal:
            upper = item.coordinate
            break
        lower = item.coordinate
    else:
        upper = CLOSING_BOUNDARY
    start = STAGE_IDS.index(lower) + 1 if lower != ENTRY_BOUNDARY else 0
    end = STAGE_IDS.index(upper) if upper != CLOSING_BOUNDARY else len(STAGE_IDS)
    bracket = "[" if lower == ENTRY_BOUNDARY else "("
    return Interval(
        notation=f"{bracket}{lower}, {upper}]",
        lower=lower,
        upper=upper,
        unobserved=STAGE_IDS[start:end],
    )


def _result(parents: Parents, reason: str) -> StageLocalization:
    status = REASONS[reason]
    assert status is not None, f"{reason} is no primary reason"
    authority = parents.authority
    shas = [
        None if item is None else struct_sha(item)
        for item in (parents.reproduction, parents.discovery, authority)
    ]
    return StageLocalization(
        status=status,
        disposition=DISPOSITIONS[status],
        reason=reason,
        target_layer=None if authority is None else authority.target_layer,
        pass2_sha256=shas[0],
        pass3a_sha256=shas[1],
        pass3b_sha256=shas[2],
    )
