"""The state report `cke.xray_execution_state_report`: schedule and cache, stage by stage.

Stages stand in the order in which a fault is looked for. At most one is `broken`: the first that
fails; a later one that fails too is `poisoned`, one without evidence is `not_reached`.
"""

from typing import Literal

from cke.schemas.ir import Node, Value
from cke.schemas.trace import CacheLayout

SCHEMA = "cke.xray_execution_state_report"
VERSION = 1

StateName = Literal[
    "segmentation",
    "positions",
    "append_index",
    "cache_token_count",
    "cache_layout",
    "append_source",
    "round_trip",
    "previous_rows",
    "valid_rows",
    "attention",
]


class StateStage(Node, frozen=True):
    """One stage: how many facts it looked at, and the first that does not hold."""

    name: StateName
    state: Literal["passed", "broken", "poisoned", "not_reached"]
    checked: int
    detail: str
    checkpoint_id: str | None = None
    role: str | None = None
    segment: int | None = None


class StateForward(Node, frozen=True):
    """One forward of one side: what it ran, at which positions, and what it did to the cache."""

    index: int
    phase: str
    columns: int
    first_positions: tuple[int, ...]
    cache_action: str
    append_index: tuple[int, ...]
    cache_token_count: tuple[int, ...]


class StateReport(Node, frozen=True):
    """The stages, and the facts of both sides that they compare."""

    subject: dict[str, Value]
    oracle: dict[str, Value]
    stages: tuple[StateStage, ...]
    first_broken: StateName | None
    subject_forwards: tuple[StateForward, ...]
    oracle_forwards: tuple[StateForward, ...]
    subject_cache: CacheLayout | None
    oracle_cache: CacheLayout | None


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: StateReport
    body_sha256: str
