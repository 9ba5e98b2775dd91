"""Bind a layer trace to its run before any of its summaries is read."""

from pathlib import Path
from typing import Any

import msgspec

from cke.artifacts.fingerprints import canonical_sha
from cke.artifacts.reading import Loaded
from cke.schemas.differential import TraceSource
from cke.schemas.run_report import RunReport


class Side(msgspec.Struct, frozen=True):
    """One run as Pass 3 and Pass 4 are handed it: its report, and its trace as parsed JSON.

    `trace_sha256` is the canonical SHA-256 that was noted when the trace was captured.
    """

    role: str
    report: Loaded[RunReport]
    trace: dict[str, Any] | None
    trace_sha256: str


class Bound(msgspec.Struct, frozen=True):
    """A trace whose bindings hold; its summaries are not yet read."""

    source: TraceSource
    trace: dict[str, Any]


def bind(side: Side, report_sha256: str | None, step: int | None) -> Bound | str:
    """Return the bound trace, or the name of the binding that fails.

    The order is report, set id, manifest, step, trace; nothing else of the trace is looked at.
    """
    trace = side.trace
    if trace is None:
        return "trace_missing"
    report = side.report
    if report.sha256 != report_sha256 or canonical_sha(report.document) != report.sha256:
        return "run_report"
    identity = report.document.get("artifact_set_id")
    if identity is None or trace.get("artifact_set_id") != identity:
        return "artifact_set"
    manifest = canonical_sha(report.document["manifest"])
    if canonical_sha(trace.get("manifest")) != manifest:
        return "semantic_manifest"
    if report.value.manifest.runtime.layer_checkpoint_step != step:
        return "step"
    if canonical_sha(trace) != side.trace_sha256:
        return "trace_sha"
    source = TraceSource(
        trace_sha256=side.trace_sha256,
        report_sha256=report.sha256,
        manifest_sha256=manifest,
        artifact_set_id=str(identity),
    )
    return Bound(source, trace)


TRACE_PATH = Path("layer_trace")
"""How a trace that was handed over as data is named in errors."""
