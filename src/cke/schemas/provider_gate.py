"""The report `cke.xray_monotonic_provider_gate`: whether a provider may take another's place.

A row is a checkpoint of one forward, measured against the oracle under both providers. No row may
regress by more than epsilon, in relative RMSE or in max_abs; a row that only one run has fails.
"""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_monotonic_provider_gate"
VERSION = 1
EPSILON = 1e-12


class GateRow(Node, frozen=True):
    """One checkpoint under both providers; None is an error that has no number."""

    checkpoint_id: str
    role: str | None
    segment: int
    incumbent_relative_rmse: float | None
    candidate_relative_rmse: float | None
    incumbent_max_abs: float | None
    candidate_max_abs: float | None
    state: Literal["equal", "better", "worse", "missing"]
    detail: str = ""


class ProviderGate(Node, frozen=True):
    """The gate of one candidate against one incumbent, and the runs that it is made of.

    `calls` counts the rows that the candidate's own kernel made; without one nothing was shown.
    """

    operator: str
    incumbent: str
    candidate: str
    incumbent_contract_id: str
    candidate_contract_id: str
    equivalence_group: str
    epsilon: float
    promoted: bool
    reasons: tuple[str, ...]
    calls: int
    rows: tuple[GateRow, ...]
    subject: dict[str, Value]
    oracle: dict[str, Value]
    incumbent_report_sha256: str
    candidate_report_sha256: str


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: ProviderGate
    body_sha256: str
