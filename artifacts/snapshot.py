"""Make and read snapshots: each embedded run report is complete, and is checked alone."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cke.artifacts.pass1 import first_difference
from cke.artifacts.reading import REPORT_LIMITS, load_run_report
from cke.artifacts.refusal import refuse_document
from cke.schemas.execution_manifest import SCHEMA
from cke.schemas.reading import convert, read_json
from cke.schemas.run_report import Perf, RunReport
from cke.schemas.snapshot import PerfSummary, RunSnapshot, SnapshotKind, TokenParity

PARITY: tuple[SnapshotKind, ...] = ("token_parity_snapshot", "qwen3_sanity_snapshot")


def make_snapshot(kind: SnapshotKind, reports: Sequence[RunReport]) -> RunSnapshot:
    """Return the snapshot of some runs, with the object of its mode."""
    if kind in PARITY:
        return RunSnapshot(kind=kind, run_reports=tuple(reports), token_parity=_parity(reports))
    return RunSnapshot(kind=kind, run_reports=tuple(reports), perf=_perf(reports))


def read_snapshot(path: Path) -> RunSnapshot:
    """Return the snapshot at `path`; a report that would be refused alone refuses it."""
    document = read_json(path, REPORT_LIMITS)
    snapshot = convert(document, RunSnapshot, path)
    if "schema" not in document:
        refuse_document(path, "$.schema", f"expected `{SCHEMA}`")
    for report in document["run_reports"]:
        load_run_report(report, path)
    if make_snapshot(snapshot.kind, snapshot.run_reports) != snapshot:
        refuse_document(path, "$", "expected the summary of the embedded run reports")
    return snapshot


def encode_snapshot(snapshot: RunSnapshot) -> bytes:
    """Return the JSON of a snapshot."""
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=2) + b"\n"


def _parity(reports: Sequence[RunReport]) -> TokenParity:
    first = reports[0].report.selected_token_ids
    found = [first_difference(first, item.report.selected_token_ids) for item in reports]
    differences = [index for index in found if index is not None]
    return TokenParity(compared_tokens=len(first), first_difference=min(differences, default=None))


def _perf(reports: Sequence[RunReport]) -> PerfSummary:
    found = [item.report.perf for item in reports]
    timings = [item for item in found if isinstance(item, Perf)]
    steady = [item.itl_ms for item in timings if item.itl_ms is not None]
    return PerfSummary(
        tag=timings[0].tag,
        runs=len(timings),
        median_itl_ms=statistics.median(steady),
        median_ttft_ms=statistics.median(item.ttft_ms for item in timings),
    )
