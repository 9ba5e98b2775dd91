"""What elaboration gives: functions of ops over named edges, and the weights that they read.

The form is that of the IR levels without kernels and without a file's tensors; the compiler makes
BuildIR of it. Goal: one function per layer kind. Non-goal: logic; node files hold none.
"""

import msgspec

from cke.dsl import syntax
from cke.errors import Span
from cke.schemas.ir import Contract, Edge, Node, Parameter, StateSlot, TensorType, Value
from cke.schemas.manifest import Given


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a file may hold a weight.

    `names` are tensor names in order of preference; `{L}`, `{X}` and schedule names are still in
    braces. `layout` is the stored layout, None for the declared one. `members` parts share the
    tensor, and the weight belongs to number `member` of them. `transforms` are applied last.
    """

    names: tuple[str, ...]
    layout: syntax.Shape | None
    member: int
    members: int
    transforms: tuple[tuple[str, tuple[float, ...]], ...]
    span: Span


class WeightUse(msgspec.Struct, frozen=True, kw_only=True):
    """A weight parameter of a function, and the clauses for the file's format.

    `grouped` are the axes that a file joins when a clause has no layout, `dropped` the contracted
    axes that a bias lacks. `tied` is the parameter whose tensor this is. `sizes` has every axis
    that a layout may name.
    """

    name: str
    type: TensorType
    grouped: tuple[tuple[str, ...], ...]
    dropped: tuple[str, ...]
    clauses: tuple[Clause, ...]
    tied: str | None
    sizes: dict[str, int]
    span: Span


class Op(Node, frozen=True, kw_only=True):
    """One operation; the fields are those of BuildIR's op before kernels are resolved."""

    id: str
    operator: str
    instance: str
    inputs: tuple[str | None, ...]
    weights: tuple[str | None, ...]
    state: str | None
    attributes: dict[str, Value]
    layout: dict[str, Value]
    results: tuple[Edge, ...]
    contract: Contract
    span: Span


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """Ops over parameters, weights and state, as one segment of the entry or one layer kind."""

    parameters: tuple[Parameter, ...]
    weights: tuple[WeightUse, ...]
    state: tuple[StateSlot, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    aliases: tuple[Edge, ...]
    givens: tuple[Given, ...]
    block: str
    span: Span


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a function, by its index; `arguments` and `results` are edges of the program.

    `row` is the schedule at the layer.
    """

    function: int
    layer: int | None
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    row: dict[str, Value]


class Elaboration(msgspec.Struct, frozen=True, kw_only=True):
    """A circuit under one config: the functions, and the steps that call them in order."""

    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[str, ...]
