"""The diagnosis `cke.xray_orchestration_report`: what diverged first, why, who owns it, what to do.

A complete finding has one edge, one class, one owner and one action (XRAY-59). A stopped report
has a finding before numbers and no verdict. An incomplete one names the probe that would decide.
"""

from typing import Literal

from cke.schemas.ir import Node, Value
from cke.schemas.manifest import Resolution
from cke.schemas.numerical_report import Curve, Gate, Metrics, Ranking, Verdict

SCHEMA = "cke.xray_orchestration_report"
VERSION = 1

Status = Literal["complete", "stopped", "incomplete", "rejected"]
StageName = Literal["binding", "schedule", "metadata", "weights", "numbers", "behaviour"]
StageState = Literal["passed", "broken", "not_reached", "not_available"]


class Stage(Node, frozen=True):
    """One stage of the diagnosis: what it looked at, and how it ended."""

    name: StageName
    state: StageState
    checked: int
    detail: str


class Replay(Node, frozen=True):
    """An op run on the oracle's inputs, three ways (XRAY-18).

    `ops` are the ops between the captured inputs and the edge; more than one when the oracle does
    not show the values between them. `compiled_against_kernel` compares what the subject captured
    with the same kernels run one by one on the subject's own inputs.
    """

    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    kernel_against_reference: Metrics
    reference_against_oracle: Metrics
    kernel_against_oracle: Metrics
    compiled_against_kernel: Metrics | None
    gate: Gate
    says: Literal["kernel", "oracle_differs", "inherited", "compiled", "not_finite"]


class Counterfactual(Node, frozen=True):
    """A single change, replayed on the oracle's inputs; `closes` when the edge then agrees.

    `kind` is attribute, operator, operand, insertion, weight, position or cache. `before` and
    `after` are relative RMSE against the oracle. `origin` says where the value comes from.
    """

    op: str
    kind: str
    what: str
    old: Value
    new: Value
    origin: str
    before: float
    after: float
    closes: bool
    patch: str | None = None


class Divergence(Node, frozen=True):
    """The first divergent edge, and the finding about it.

    `failure_class`, `fix_owner` and `recommended_action` are None only in an incomplete report;
    a first token that differs with every tensor inside its budget has a class and no owner yet.
    `source` is the circuit line of the op. `confirmed_by` is the one change that closes the gap.
    """

    checkpoint_id: str | None
    role: str | None
    layer: int | None
    phase: str | None
    segment: int | None
    op: str | None
    operator: str | None
    kernel_id: str | None
    source: str | None
    failure_class: str | None
    stage: StageName
    fix_owner: str | None
    recommended_action: str | None
    because: tuple[str, ...]
    metrics: Metrics | None = None
    gate: Gate | None = None
    replay: Replay | None = None
    confirmed_by: Counterfactual | None = None
    also_closing: tuple[Counterfactual, ...] = ()
    tried: int = 0
    last_passing_checkpoint: str | None = None


class Probe(Node, frozen=True):
    """What to capture or run next, and which question it would answer."""

    command: str
    question: str


class Round(Node, frozen=True):
    """One round of captures: what was asked for, and how many tensors each side gave."""

    purpose: str
    layers: tuple[int, ...] | None
    edges: tuple[str, ...] | None
    subject_tensors: int
    oracle_tensors: int


class Coverage(Node, frozen=True):
    """Ops of call IR with a compared edge, graph edges compared, and the ops without one."""

    ops_with_edges: int
    ops_total: int
    edges_compared: int
    edges_total: int
    ops_without_edges: tuple[str, ...]


class Point(Node, frozen=True):
    """One compared checkpoint, in execution order; the drift curve is made of these."""

    stop: int
    checkpoint_id: str
    role: str | None
    segment: int
    status: str
    max_abs: float | None
    rmse: float | None
    relative_rmse: float | None
    exact_ratio: float
    budget: float | None
    kernel_id: str | None


class Forward(Node, frozen=True):
    """One forward with the badge of its phase; `columns` counts the positions of a row."""

    index: int
    badge: Literal["PREFILL", "DECODE", "TEACHER_FORCED"]
    columns: int
    cache_action: str


class CircuitRow(Node, frozen=True):
    """One op of call IR in execution order; without a compared edge its numbers are None.

    `required_contract_id` is what its provider was selected under, `resolved_contract_id` what the
    kernel that ran declares; they differ when another kernel was loaded. `stops` are the points of
    its results; errors are the largest of these, `exact_ratio` the least. `reads` are the places in
    `circuit` of the ops whose results it reads.
    """

    phase: str
    step: str
    layer: int | None
    op: str
    operator: str
    function: str
    kernel_id: str
    required_contract_id: str
    resolved_contract_id: str | None
    stops: tuple[int, ...]
    max_abs: float | None
    rmse: float | None
    exact_ratio: float | None
    reads: tuple[int, ...] = ()


class Companion(Node, frozen=True):
    """A report beside this one: its schema, its file in the run directory, and its digest."""

    schema: str
    file: str
    body_sha256: str


class PacketEvidence(Node, frozen=True):
    """An attention packet as the diagnosis takes it: a measurement with its limitations (PKT-68).

    `segment` is the forward of the subject whose own captures the packet was compared with, None
    when there is none; `identical` are the packet's tensors whose bytes are those captured there.
    `within` says whether the error is inside the budget, None when it has no number. Without
    identical queries, keys and values the packet decides nothing.
    """

    packet_sha256: str
    layer: int
    position: int
    segment: int | None
    identical: tuple[str, ...]
    relative_l2: float | None
    budget: Gate
    within: bool | None
    limitations: tuple[str, ...]


class Diagnosis(Node, frozen=True):
    """The report of one subject against one pinned oracle.

    `first_material` is the stop of the logits whose first token flips. `circuit` has a row for
    every op, `providers` the selection behind it with every rejection.
    `packet` is the attention packet that was given; `packet_export` is the command that writes one
    of the first divergent edge, when that is of an attention which a packet can hold.
    """

    status: Status
    verdict: Verdict | None
    banner: str
    scope: dict[str, Value]
    subject: dict[str, Value]
    oracle: dict[str, Value]
    stages: tuple[Stage, ...]
    first_divergence: Divergence | None
    next_probe: Probe | None
    coverage: Coverage
    rounds: tuple[Round, ...]
    points: tuple[Point, ...]
    byte_exact_prefix: int
    first_non_exact: int | None
    first_over_gate: int | None
    curves: tuple[Curve, ...]
    rankings: tuple[Ranking, ...]
    first_flip: tuple[int, int, int] | None
    second_report: dict[str, Value] | None
    architecture_policy: dict[str, str]
    fix_progression: tuple[str, ...]
    reproduce: str
    first_material: int | None = None
    forwards: tuple[Forward, ...] = ()
    circuit: tuple[CircuitRow, ...] = ()
    providers: tuple[Resolution, ...] = ()
    companions: tuple[Companion, ...] = ()
    packet: PacketEvidence | None = None
    packet_export: str | None = None


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: Diagnosis
    body_sha256: str
