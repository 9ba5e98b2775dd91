"""What a layer trace must say of itself: coverage, order, summaries, digests; both layouts.

A legacy trace, without a layout, is readable; it is held to its summaries alone.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET

from cke.artifacts.check_report import check_manifest
from cke.artifacts.refusal import refuse_document
from cke.artifacts.stages import (
    PUBLIC_NAMES,
    STAGE_IDS,
    layer_coordinate,
    layer_of,
    requested_layers,
)
from cke.schemas.layer_trace import (
    INTRA_DOMAIN,
    LAYER_DOMAIN,
    LAYER_ROLE,
    LIS_LAYER_TRACE_HARD_MAX,
    SUMMARY_FIELDS,
    IntraEntry,
    IntraLayout,
    LayerEntry,
    LayerLayout,
    LayerTrace,
    Missing,
)

PRESENT = ("tensor_role", "observed_dtype", "digest")
"""What an entry has beyond a legacy one, whatever its value; the rest is compared."""


def check_layer_trace(trace: LayerTrace, path: Path) -> None:
    """Refuse a trace that contradicts itself; a legacy one is held to its summaries."""
    check_manifest(trace.manifest, path)
    total = len(trace.layer_trace)
    if total > LIS_LAYER_TRACE_HARD_MAX:
        message = f"expected at most {LIS_LAYER_TRACE_HARD_MAX} records, got {total}"
        refuse_document(path, "$.layer_trace", message)
    for index, entry in enumerate(trace.layer_trace):
        where = f"$.layer_trace[{index}]"
        if layer_of(entry.name) is None:
            refuse_document(path, f"{where}.name", f"expected a layer's output, got `{entry.name}`")
        check_summary(entry, path, where)
    if trace.checkpoint_layout is not UNSET:
        _check_layout(trace.checkpoint_layout, trace.layer_trace, path)
        if trace.checkpoint_layout.runtime_checkpoint_step != (
            trace.manifest.runtime.layer_checkpoint_step
        ):
            _refuse(path, "$.checkpoint_layout.runtime_checkpoint_step", "the manifest's step")
    _check_intra(trace, path)


def check_summary(entry: LayerEntry | IntraEntry, path: Path, where: str) -> None:
    """Refuse a summary whose aggregates contradict its flags or each other."""
    aggregates = (entry.min, entry.mean, entry.max, entry.l2)
    present = [item for item in aggregates if item is not None]
    flagged = bool(entry.nan or entry.inf)
    if flagged and present:
        _refuse(path, where, "null aggregates where a nan or inf is flagged")
    if not flagged and len(present) != len(aggregates):
        _refuse(path, where, "aggregates where neither nan nor inf is flagged")
    if not flagged:
        low, mean, high, l2 = present
        if not low <= mean <= high:
            _refuse(path, where, "min, mean and max in order")
        if l2 < 0:
            _refuse(path, f"{where}.l2", "at least 0")


def _check_layout(layout: LayerLayout, entries: Sequence[LayerEntry], path: Path) -> None:
    where = "$.checkpoint_layout"
    wanted = tuple(map(layer_coordinate, requested_layers(layout.total_layer_count)))
    if layout.requested_coordinates != wanted:
        _refuse(path, f"{where}.requested_coordinates", f"the layers of {layout.total_layer_count}")
    check_coverage(wanted, layout.captured_coordinates, layout.missing_coordinates, path, where)
    if layout.digest_contract.version != LAYER_DOMAIN:
        _refuse(path, f"{where}.digest_contract.version", f"`{LAYER_DOMAIN}`")
    if tuple(layout.available_summary_fields) != SUMMARY_FIELDS:
        _refuse(path, f"{where}.available_summary_fields", "the seven fields in order")
    names = tuple(entry.name for entry in entries)
    if names != layout.captured_coordinates:
        _refuse(path, "$.layer_trace", "an entry for each captured coordinate, in order")
    phase = "prefill" if layout.runtime_checkpoint_step == 0 else "decode"
    for index, entry in enumerate(entries):
        _check_versioned(entry, layout, phase, wanted, path, f"$.layer_trace[{index}]")


def _check_versioned(
    entry: LayerEntry,
    layout: LayerLayout,
    phase: str,
    wanted: tuple[str, ...],
    path: Path,
    where: str,
) -> None:
    for field in PRESENT:
        if getattr(entry, field) is UNSET:
            _refuse(path, f"{where}.{field}", "a value in the versioned layout")
    rows = (
        ("phase", phase),
        ("step", layout.runtime_checkpoint_step),
        ("runtime_checkpoint_step", layout.runtime_checkpoint_step),
        ("layer_index", layer_of(entry.name)),
        ("batch_index", 0),
        ("sequence_index", 0),
        ("stage_order", layout.stage_order),
        ("execution_ordinal", wanted.index(entry.name)),
        ("element_count", math.prod(entry.shape)),
        ("available_summary_fields", SUMMARY_FIELDS),
    )
    for field, expected in rows:
        if getattr(entry, field) != expected:
            _refuse(path, f"{where}.{field}", f"{expected}")
    _check_digest(entry, LAYER_ROLE, LAYER_DOMAIN, path, where)


def _check_digest(
    entry: LayerEntry | IntraEntry, role: str, domain: str, path: Path, where: str
) -> None:
    digest = entry.digest
    assert digest is not UNSET, "the caller has checked that it is there"
    for field, expected in (("version", domain), ("tensor_role", role), ("shape", entry.shape)):
        if getattr(digest, field) != expected:
            _refuse(path, f"{where}.digest.{field}", f"{expected}")


def check_coverage(
    requested: tuple[str, ...],
    captured: tuple[str, ...],
    missing: Sequence[Missing],
    path: Path,
    where: str,
) -> None:
    """Refuse coverage that does not part the request, in its order, each once."""
    if captured != tuple(item for item in requested if item in captured):
        _refuse(path, f"{where}.captured_coordinates", "an ordered part of the request")
    absent = tuple(item for item in requested if item not in captured)
    if tuple(item.coordinate for item in missing) != absent:
        _refuse(path, f"{where}.missing_coordinates", "the rest of the request, in order")


def _check_intra(trace: LayerTrace, path: Path) -> None:
    layout, entries = trace.intra_layer_checkpoint_layout, trace.intra_layer_trace
    bound = trace.manifest.runtime.intra_layer_checkpoints_enabled is not UNSET
    if layout is UNSET or entries is UNSET:
        if layout is not entries or bound:
            _refuse(path, "$", "an intra-layer layout, its trace and its manifest, or none of them")
        return
    if not bound or trace.checkpoint_layout is UNSET:
        _refuse(path, "$.manifest.runtime", "the intra-layer capture to be bound")
    check_intra_layer(layout, entries, path)
    runtime = trace.manifest.runtime
    rows = (
        ("target_layer", runtime.intra_layer_target_layer),
        ("runtime_checkpoint_step", runtime.layer_checkpoint_step),
    )
    for field, expected in rows:
        if getattr(layout, field) != expected:
            _refuse(path, f"$.intra_layer_checkpoint_layout.{field}", f"{expected}")


def check_intra_layer(layout: IntraLayout, entries: Sequence[IntraEntry], path: Path) -> None:
    """Refuse anything but the fixed request, covered in order, with whole summaries."""
    where = "$.intra_layer_checkpoint_layout"
    if layout.requested_coordinates != STAGE_IDS:
        _refuse(path, f"{where}.requested_coordinates", "the 17 stages in order")
    check_coverage(STAGE_IDS, layout.captured_coordinates, layout.missing_coordinates, path, where)
    if layout.digest_contract.version != INTRA_DOMAIN:
        _refuse(path, f"{where}.digest_contract.version", f"`{INTRA_DOMAIN}`")
    if tuple(layout.available_summary_fields) != SUMMARY_FIELDS:
        _refuse(path, f"{where}.available_summary_fields", "the seven fields in order")
    if tuple(entry.stage_id for entry in entries) != layout.captured_coordinates:
        _refuse(path, "$.intra_layer_trace", "an entry for each captured coordinate, in order")
    for index, entry in enumerate(entries):
        _check_intra_entry(entry, layout, path, f"$.intra_layer_trace[{index}]")


def _check_intra_entry(entry: IntraEntry, layout: IntraLayout, path: Path, where: str) -> None:
    order = STAGE_IDS.index(entry.stage_id)
    rows = (
        ("runtime_checkpoint_step", layout.runtime_checkpoint_step),
        ("layer_index", layout.target_layer),
        ("tensor_role", entry.stage_id),
        ("public_name", PUBLIC_NAMES[entry.stage_id]),
        ("token_position", layout.token_position),
        ("stage_order", order),
        ("execution_ordinal", order),
        ("element_count", math.prod(entry.shape)),
        ("available_summary_fields", SUMMARY_FIELDS),
    )
    for field, expected in rows:
        if getattr(entry, field) != expected:
            _refuse(path, f"{where}.{field}", f"{expected}")
    check_summary(entry, path, where)
    _check_digest(entry, entry.stage_id, INTRA_DOMAIN, path, where)


def _refuse(path: Path, where: str, expected: str) -> None:
    refuse_document(path, where, f"expected {expected}")
