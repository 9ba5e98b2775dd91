"""Snapshots of verification and measurement: complete run reports under the one schema string."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cke.schemas.execution_manifest import SCHEMA, Exact, Name, Natural, Positive, Schema
from cke.schemas.run_report import Milliseconds, RunReport

SnapshotKind = Literal[
    "token_parity_snapshot", "qwen3_sanity_snapshot", "perf_results", "perf_smoke"
]


class TokenParity(Exact, frozen=True, kw_only=True):
    """Whether the runs selected the same tokens."""

    compared_tokens: Positive
    first_difference: Natural | None


class PerfSummary(Exact, frozen=True, kw_only=True):
    """Medians over the embedded runs."""

    tag: Name
    runs: Positive
    median_itl_ms: Milliseconds
    median_ttft_ms: Milliseconds


class RunSnapshot(Exact, frozen=True, kw_only=True):
    """A wrapper: run reports, and one bounded object that is the mode's own."""

    schema: Schema = SCHEMA
    kind: SnapshotKind
    run_reports: Annotated[tuple[RunReport, ...], Meta(min_length=1, max_length=16)]
    token_parity: TokenParity | UnsetType = UNSET
    perf: PerfSummary | UnsetType = UNSET
