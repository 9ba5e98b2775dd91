"""Pass 3: the earliest differing layer output within what both sides captured.

Bindings come before summaries: a trace that is not that of its run is never parsed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from cke.artifacts.fingerprints import struct_sha
from cke.artifacts.reading import load_layer_trace
from cke.artifacts.sources import TRACE_PATH, Bound, Side, bind
from cke.artifacts.stages import LOCALISED, layer_of
from cke.errors import CkeError
from cke.schemas.differential import (
    Comparison,
    Coverage,
    Interval,
    LayerDisposition,
    LayerLocalization,
    LayerStatus,
    PrefixReproduction,
    TokenLocalization,
)
from cke.schemas.layer_trace import LAYER_DOMAIN, LAYER_LAYOUT, LayerEntry, LayerLayout, LayerTrace

ENTRY = "entry"


def localize_layers(
    tokens: TokenLocalization, reproduction: PrefixReproduction, reference: Side, candidate: Side
) -> LayerLocalization:
    """Return the interval of layers that holds the earliest observed difference."""
    blocked = _readiness(tokens, reproduction)
    if blocked is not None:
        return _blocked(reproduction, *blocked)
    bound: list[Bound] = []
    sides = (("reference", reference), ("candidate", candidate))
    for role, side in sides:
        expected = getattr(reproduction, f"{role}_report_sha256")
        found = bind(side, expected, reproduction.runtime_checkpoint_step)
        if found == "trace_missing":
            return _blocked(reproduction, "checkpoint_artifact_missing", f"{role}_trace_missing")
        if isinstance(found, str) or side.role != role:
            name = found if isinstance(found, str) else "role"
            return _blocked(reproduction, "source_binding_inconsistent", f"{role}_{name}")
        bound.append(found)
    for item in bound:
        refusal = _support(item.trace)
        if refusal is not None:
            return _blocked(reproduction, *refusal)
    try:
        traces = [load_layer_trace(item.trace, TRACE_PATH).value for item in bound]
    except CkeError as error:
        where = str(error.diagnostics[0].path)[:256]
        return _blocked(reproduction, "checkpoint_summary_malformed", where)
    return _compare(reproduction, traces, bound)


def _readiness(
    tokens: TokenLocalization, reproduction: PrefixReproduction
) -> tuple[LayerStatus, str] | None:
    if reproduction.status != "reproduction_verified":
        return "comparison_blocked_by_pass2", reproduction.status
    coherent = (
        reproduction.tier == "independent_rerun_verified"
        and reproduction.generated_index == tokens.generated_index
        and reproduction.runtime_checkpoint_step == tokens.runtime_checkpoint_step
        and reproduction.pass1_sha256 == struct_sha(tokens)
    )
    return None if coherent else ("source_binding_inconsistent", "pass2_incoherent")


def _support(trace: dict[str, Any]) -> tuple[LayerStatus, str] | None:
    """Refuse a layout that is not the one known, by its names alone."""
    layout = trace.get("checkpoint_layout")
    model = trace.get("manifest", {}).get("model", {})
    if not isinstance(layout, dict) or model.get("family") not in LOCALISED:
        return "unsupported_checkpoint_layout", "no_versioned_layout"
    if (layout.get("layout_name"), layout.get("layout_version")) != (LAYER_LAYOUT, 1):
        return "unsupported_checkpoint_layout", "layout_unknown"
    contract = layout.get("digest_contract")
    if not isinstance(contract, dict) or contract.get("version") != LAYER_DOMAIN:
        return "comparison_policy_unavailable", "digest_contract_unknown"
    return None


def _layout(trace: LayerTrace) -> LayerLayout:
    assert isinstance(trace.checkpoint_layout, LayerLayout), "support has been checked"
    return trace.checkpoint_layout


def _compare(
    reproduction: PrefixReproduction, traces: Sequence[LayerTrace], bound: Sequence[Bound]
) -> LayerLocalization:
    one, two = traces
    first, second = (_layout(trace) for trace in traces)
    problem = _alignment(one, two)
    if problem is not None:
        return _blocked(reproduction, "checkpoint_alignment_inconsistent", problem)
    coverage = common_coverage(first.captured_coordinates, second.captured_coordinates)
    if not coverage.common:
        return _blocked(reproduction, "insufficient_common_coverage", "no_common_coordinates")
    left, right = ({e.name: e for e in trace.layer_trace} for trace in traces)
    for name in coverage.common:
        if _placed(left[name]) != _placed(right[name]):
            return _blocked(reproduction, "checkpoint_alignment_inconsistent", "shape_or_order")
    comparisons = tuple(
        Comparison(coordinate=name, digest_equal=left[name].digest == right[name].digest)
        for name in coverage.common
    )
    walked = until_mismatch(comparisons)
    mismatch = walked[-1] if not walked[-1].digest_equal else None
    found = _blocked(reproduction, "no_mismatch_in_captured_coverage")
    return msgspec.structs.replace(
        found,
        status="no_mismatch_in_captured_coverage" if not mismatch else "observable_mismatch_found",
        disposition=_disposition(reproduction) if mismatch else "blocked",
        reasons=("asymmetric_coverage",)
        if coverage.reference_only or coverage.candidate_only
        else (),
        model_family=one.manifest.model.family,
        runtime_checkpoint_step=reproduction.runtime_checkpoint_step,
        total_layer_count=first.total_layer_count,
        target_layer=layer_of(mismatch.coordinate) if mismatch else None,
        interval=layer_interval(walked) if mismatch else None,
        coverage=coverage,
        comparisons=walked,
        reference=bound[0].source,
        candidate=bound[1].source,
    )


def _alignment(one: LayerTrace, two: LayerTrace) -> str | None:
    first, second = _layout(one), _layout(two)
    if first.total_layer_count != second.total_layer_count:
        return "total_layer_count"
    paths = [trace.manifest.runtime.precision_path for trace in (one, two)]
    if paths[0] != paths[1] or UNSET in paths:
        return "precision_path"
    return None


def _placed(entry: LayerEntry) -> tuple[object, ...]:
    return (entry.shape, entry.element_count, entry.execution_ordinal, entry.observed_dtype)


def common_coverage(one: Sequence[str], two: Sequence[str]) -> Coverage:
    """Return what both have, in the order of the reference, and what one of them has."""
    return Coverage(
        common=tuple(name for name in one if name in two),
        reference_only=tuple(name for name in one if name not in two),
        candidate_only=tuple(name for name in two if name not in one),
    )


def until_mismatch(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons up to and with the first that differs."""
    for index, item in enumerate(comparisons):
        if not item.digest_equal:
            return tuple(comparisons[: index + 1])
    return tuple(comparisons)


def layer_interval(walked: Sequence[Comparison]) -> Interval:
    """Return `(last equal, first different]`, or `[entry, first different]`."""
    upper = walked[-1].coordinate
    end = layer_of(upper)
    assert end is not None, "a coordinate names its layer"
    if len(walked) == 1:
        unobserved = range(end)
        lower, notation = ENTRY, f"[{ENTRY}, {upper}]"
    else:
        lower = walked[-2].coordinate
        start = layer_of(lower)
        assert start is not None, "a coordinate names its layer"
        unobserved, notation = range(start + 1, end), f"({lower}, {upper}]"
    names = tuple(f"layer.{layer}.output" for layer in unobserved)
    return Interval(notation=notation, lower=lower, upper=upper, unobserved=names)


def _disposition(reproduction: PrefixReproduction) -> LayerDisposition:
    if reproduction.strength_limit == "checkpoint_confirmation_allowed":
        return "suspect_interval_available"
    return "exploratory_localization_only"


def _blocked(
    reproduction: PrefixReproduction, status: LayerStatus, *reasons: str
) -> LayerLocalization:
    return LayerLocalization(
        status=status,
        disposition="blocked",
        reasons=reasons,
        pass2_sha256=struct_sha(reproduction),
    )
