"""LoweredIR: GraphIR after its last pass, ordered, with scopes and state slots assigned.

It keeps GraphIR's ops and adds only what a schedule needs. Goal: the last level at which one op
is one node. Non-goal: calls; the members of a fusion group are merged one level below.
"""

from cke.errors import Span
from cke.schemas.graph_ir import Op
from cke.schemas.ir import Edge, Node, Parameter, StateSlot, Step


class ScheduledOp(Node, frozen=True):
    """An op at its place; `scopes` name the named scope of each live result."""

    order: int
    op: Op
    scopes: tuple[str, ...]


class Function(Node, frozen=True):
    """Scheduled ops over parameters, weights and state; the rest is GraphIR's function."""

    name: str
    parameters: tuple[Parameter, ...]
    weights: tuple[Parameter, ...]
    scalars: tuple[Parameter, ...]
    state: tuple[StateSlot, ...]
    ops: tuple[ScheduledOp, ...]
    results: tuple[str, ...]
    layers: tuple[int, ...]
    aliases: tuple[Edge, ...]
    capture: tuple[str, ...]
    block: str
    span: Span | None


class Program(Node, frozen=True):
    """One phase; `slots` is every state slot of the program, one per step that owns it."""

    phase: str
    inputs: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    slots: tuple[StateSlot, ...]
    outputs: tuple[str, ...]


class LoweredIR(Node, frozen=True):
    """A circuit bound to one config and one dtype, as scheduled ops."""

    circuit: str
    version: int
    title: str
    file: str
    dtype: str
    dims: dict[str, int]
    capture: tuple[str, ...]
    programs: tuple[Program, ...]
