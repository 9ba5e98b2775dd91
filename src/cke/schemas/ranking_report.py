"""The ranking report `cke.xray_ranking_report`: which token each side puts first, by position.

Every check names its kind: `mixed_prefill` and `teacher_forced` compare the sides on one forced
token history, `persistent_vs_replay` the subject's decode steps with a full replay of itself.
"""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_ranking_report"
VERSION = 1

CheckKind = Literal["mixed_prefill", "teacher_forced", "persistent_vs_replay"]


class RankedPosition(Node, frozen=True):
    """The logits of both sides at one position.

    A margin is the first logit less the second, `overlap` how many of the K first tokens both
    sides have. `agrees` is true for ties too. `max_abs` is the largest difference of a logit.
    """

    row: int
    column: int
    position: int
    subject_first: int
    oracle_first: int
    agrees: bool
    subject_margin: float | None
    oracle_margin: float | None
    overlap: int
    max_abs: float | None


class RankingCheck(Node, frozen=True):
    """One forward's positions under one kind of check; the least margin is the oracle's."""

    check: CheckKind
    segment: int
    phase: Literal["PREFILL", "DECODE", "TEACHER_FORCED"]
    positions: tuple[RankedPosition, ...]
    agreeing: int
    least_margin: float | None
    mean_overlap: float | None


class RankingReport(Node, frozen=True):
    """All checks; the owner is that of the first divergent edge, None while it is open.

    `first_flip` is (segment, row, column).
    """

    banner: str
    subject: dict[str, Value]
    oracle: dict[str, Value]
    k: int
    checks: tuple[RankingCheck, ...]
    first_flip: tuple[int, int, int] | None
    first_divergent_edge: str | None
    fix_owner: str | None


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: RankingReport
    body_sha256: str
