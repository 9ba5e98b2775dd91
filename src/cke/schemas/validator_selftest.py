"""The scoreboard `cke.xray_validator_selftest`: injected faults, and what X-Ray said of each.

`status` is computed from the outcomes. What varies between equal runs, times among it, is kept
outside the hashed body.
"""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_validator_selftest"
VERSION = 1

Kind = Literal["fault", "control", "equivalent"]
Status = Literal["pass", "fail", "incomplete"]


class Expected(Node, frozen=True):
    """What a fault must give, as the catalogue states it; all None for a control.

    A fault without an owner has to leave it open.
    """

    checkpoint_id: str | None
    failure_class: str | None
    fix_owner: str | None


class Found(Node, frozen=True):
    """What the report says; `because` are its own reasons."""

    status: str
    verdict: str | None
    checkpoint_id: str | None
    failure_class: str | None
    fix_owner: str | None
    confirmed_by: str | None
    because: tuple[str, ...]
    next_probe: str | None


class Outcome(Node, frozen=True):
    """One diagnosis against its expectation.

    `found` is None, and `failed` says why, when there was no report. `wrong` is a class or owner
    that was stated and is not the expected one; `declined` states none; `missed` saw nothing.
    """

    id: str
    entry: str
    kind: Kind
    stands_for: str
    place: str
    size: str | None
    family: str
    request: str
    dtype: str
    oracle: str
    expected: Expected
    found: Found | None
    failed: str | None
    edge_exact: bool
    class_right: bool
    owner_right: bool
    confirmed: bool
    declined: bool
    missed: bool
    wrong: bool
    false_positive: bool


class Score(Node, frozen=True):
    """Counts over a set of outcomes."""

    injected: int = 0
    edge_exact: int = 0
    class_right: int = 0
    owner_right: int = 0
    confirmed: int = 0
    declined: int = 0
    missed: int = 0
    wrong: int = 0
    controls: int = 0
    false_positives: int = 0
    failed: int = 0


class Selftest(Node, frozen=True):
    """The scoreboard of one run; `reasons` are the thresholds that do not hold."""

    status: Status
    reasons: tuple[str, ...]
    thresholds: dict[str, float]
    mode: str
    seed: int
    chosen: tuple[str, ...]
    catalogue_sha256: str
    score: Score
    by: dict[str, dict[str, Score]]
    outcomes: tuple[Outcome, ...]


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: Selftest
    body_sha256: str
    volatile: dict[str, Value]
