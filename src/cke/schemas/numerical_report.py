"""The numerical report `cke.xray_numerical_report`: two traces, checkpoint by checkpoint."""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_numerical_report"
VERSION = 1

RowStatus = Literal[
    "exact",
    "within",
    "over",
    "nonfinite",
    "subject_only",
    "oracle_only",
    "layout",
    "summary",
    "summary_over",
]
"""`summary` is a row of which a side keeps no values and whose digests are not equal: whether it
is within its gate stays open. `summary_over` is one whose summaries prove that it is not."""
Verdict = Literal["pass_within_gate", "cosmetic_drift", "behavioral_divergence"]


class Worst(Node, frozen=True):
    """The element with the largest error; values that are not finite are spelled out."""

    coordinate: dict[str, int]
    subject: float | str
    oracle: float | str


class Metrics(Node, frozen=True):
    """The evidence of one checkpoint (XRAY-11); None where a number does not exist.

    `relative_rmse` is rmse over the oracle's RMS; `undefined` says why a number is missing.
    `max_ulp` counts units in the last place, None when the dtypes differ.
    """

    total_elements: int
    exact_elements: int
    exact_ratio: float
    byte_exact: bool
    finite: bool
    subject_nonfinite: int
    oracle_nonfinite: int
    mismatched_nonfinite: int
    cosine: float | None
    rmse: float | None
    relative_rmse: float | None
    mean_abs: float | None
    max_abs: float | None
    oracle_max_abs: float | None
    max_ulp: int | None
    worst: Worst | None
    undefined: dict[str, str]


class Gate(Node, frozen=True):
    """The budget of a row: the rule that made it, and its limits."""

    rule: str
    relative_rmse: float
    max_abs: float | None
    reduction: int
    depth: int


class Row(Node, frozen=True):
    """One checkpoint of one segment, in graph order."""

    stop: int
    checkpoint_id: str
    role: str | None
    layer: int | None
    segment: int
    phase: str
    status: RowStatus
    kernel_id: str | None
    contract_id: str | None
    subject_dtype: str | None
    oracle_dtype: str | None
    derivation: str | None
    metrics: Metrics | None
    gate: Gate | None
    detail: str | None = None


class Curve(Node, frozen=True):
    """Marks of the drift curve of one metric; every number is a stop (XRAY-14, XRAY-47)."""

    metric: str
    jumps: tuple[int, ...]
    monotonicity_breaks: tuple[int, ...]


class Conservation(Node, frozen=True):
    """A sum that must hold on one side by itself: what, where, how far it is off."""

    side: str
    check: str
    checkpoint_id: str
    segment: int
    error: float
    limit: float
    holds: bool


class Ranking(Node, frozen=True):
    """Whether the first token agrees, by position: a check kind, and the flips."""

    check: str
    segment: int
    positions: int
    agreeing: int
    flips: tuple[tuple[int, int], ...]


class Coverage(Node, frozen=True):
    """Compared checkpoints of all that the subject's graph has, and of all that were captured."""

    compared: int
    subject_captured: int
    oracle_captured: int
    edges_total: int | None
    not_compared: tuple[str, ...]


class Report(Node, frozen=True):
    """The comparison, complete: nothing after the first failure is left unmeasured."""

    verdict: Verdict | None
    status: Literal["complete", "incomplete"]
    banner: str
    backend: str
    backend_version: str
    subject: dict[str, Value]
    oracle: dict[str, Value]
    coverage: Coverage
    rows: tuple[Row, ...]
    byte_exact_prefix: int
    first_non_exact: int | None
    first_over_gate: int | None
    curves: tuple[Curve, ...]
    conservation: tuple[Conservation, ...]
    rankings: tuple[Ranking, ...]
    first_flip: tuple[int, int, int] | None


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: Report
    body_sha256: str
