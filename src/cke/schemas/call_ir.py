"""CallIR: the exact schedule. Ordered kernel calls, every argument with its source.

Emission, the manifest and X-Ray read this level; nothing above it is needed to write the code.
"""

from typing import Literal

from cke.errors import Span
from cke.schemas.ir import Contract, Edge, Node, Parameter, StateSlot, Step, Value


class Argument(Node, frozen=True):
    """Where one argument of a call comes from; `name` is None for an absent optional operand."""

    source: Literal["edge", "weight", "state", "scalar", "none"]
    name: str | None
    operand: str


class CacheAction(Node, frozen=True):
    """What a call does to a state slot: append, shift or carry."""

    slot: str
    action: str


class Member(Node, frozen=True):
    """An op that a call covers, with its required contract and its results of the call."""

    op: str
    operator: str
    contract: Contract
    results: tuple[int, ...]
    span: Span


class FusedWeight(Node, frozen=True):
    """A weight parameter made of others, concatenated along `axis` at load."""

    name: str
    members: tuple[str, ...]
    axis: int


class Call(Node, frozen=True):
    """One call of one kernel; `results` are edges, `scopes` the named scopes of the live ones.

    `attributes` holds every constant keyword argument: attributes and layout of the ops. `implied`
    names those that have their operator's default, which every kernel shares: code leaves them
    out. A call with a cache action gives the new slot before its results.
    """

    id: str
    kernel_id: str
    function: str
    contract_id: str
    arguments: tuple[Argument, ...]
    attributes: dict[str, Value]
    results: tuple[Edge, ...]
    scopes: tuple[str, ...]
    members: tuple[Member, ...]
    cache: CacheAction | None
    span: Span
    implied: tuple[str, ...] = ()


class Function(Node, frozen=True):
    """Calls over parameters, weights and state; `results` name edges or parameters in order.

    `weights` are the parameters as called: a fused one in place of its members. `capture` names
    the checkpoints that the function returns beside its results.
    """

    name: str
    parameters: tuple[Parameter, ...]
    weights: tuple[Parameter, ...]
    fused: tuple[FusedWeight, ...]
    scalars: tuple[Parameter, ...]
    state: tuple[StateSlot, ...]
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    layers: tuple[int, ...] = ()
    aliases: tuple[Edge, ...] = ()
    capture: tuple[str, ...] = ()
    block: str = ""
    span: Span | None = None


class Program(Node, frozen=True):
    """One phase: prefill, decode or encode.

    `slots` is every state slot, one per step that owns it, named `<step>.<slot>`; a step is named
    `layer.<L>` or after its function. A step's `weights` map the members of a fused weight, not
    the fused weight, to semantic names.
    """

    phase: str
    inputs: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    slots: tuple[StateSlot, ...]
    outputs: tuple[str, ...]


class CallIR(Node, frozen=True):
    """A circuit bound to one config and one dtype, as calls."""

    circuit: str
    version: int
    dtype: str
    dims: dict[str, int]
    programs: tuple[Program, ...]
    title: str = ""
    file: str = ""
