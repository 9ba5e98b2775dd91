"""The report of `cke verify`: one verdict, the results of the passes, and what to do next."""

from typing import Annotated, Literal

from msgspec import Meta

from cke.schemas.differential import (
    Calibration,
    LayerLocalization,
    Mode,
    Nonclaims,
    PrefixReproduction,
    StageLocalization,
    Submode,
    Text,
    TokenLocalization,
)
from cke.schemas.execution_manifest import Exact, Natural

SCHEMA: Literal["lis.verification_report/v1"] = "lis.verification_report/v1"
Outcome = Literal["PASS", "REGRESSION", "INCONCLUSIVE", "UNSUPPORTED", "HARNESS_ERROR"]
Level = Literal["demo", "backend", "runtime"]
AttemptId = Annotated[str, Meta(pattern="^lisa1:[0-9a-f]{32}$")]


class StageRecord(Exact, frozen=True, kw_only=True):
    """One stage of the attempt and how it ended."""

    name: Text
    status: Text


class LedgerRecord(Exact, frozen=True, kw_only=True):
    """One line of the ledger; numbers are contiguous from 0."""

    sequence: Natural
    attempt_id: AttemptId
    stage: Text
    status: Text
    sha256: Text | None = None


class VerificationReport(Exact, frozen=True, kw_only=True):
    """The whole result of one attempt: 18 fields."""

    schema: Literal["lis.verification_report/v1"] = SCHEMA
    attempt_id: AttemptId
    level: Level
    mode: Mode
    submode: Submode
    verdict: Outcome
    exit_code: Natural
    reason: Text
    reference: Text
    candidate: Text
    stages: Annotated[tuple[StageRecord, ...], Meta(max_length=32)]
    calibration: Calibration | None
    token_localization: TokenLocalization | None
    prefix_reproduction: PrefixReproduction | None
    layer_localization: LayerLocalization | None
    intra_layer_localization: StageLocalization | None
    next_action: Text | None
    nonclaims: Nonclaims = Nonclaims()
