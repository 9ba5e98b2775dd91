"""BuildIR: a circuit bound to one config and one dtype, one program per phase.

It holds what was decided and why: contracts, kernels with every rejection, givens, weight
bindings. B, T and S stay symbolic. Goal: one screen that tells the whole structure. Non-goal:
logic; node files hold none.
"""

import msgspec

from cke.errors import Span
from cke.schemas.bindings import Coverage, WeightBinding
from cke.schemas.ir import Contract, Edge, KernelBinding, Node, Parameter, StateSlot, Step, Value
from cke.schemas.manifest import Given, Resolution


class Op(Node, frozen=True):
    """One operation: a row of the operator table applied to edges, with its required contract.

    `id` is unique in its function (`attention.q_proj`, `attention.rope.2`). `instance` is the
    block instance in the layer (`attention`, `mlp`, "" for the layer itself). `inputs` name edges
    or parameters of the function, or weight parameters where the circuit passes a tensor (rope
    factors, experts); `weights` are those of a part, `state` is its slot. None is an absent
    optional operand, kept in place. `attributes` holds every attribute of the operator
    except those in `scalars`, which maps an attribute to a scalar parameter of the function.
    `layout` is what the shape rule derived. `group` names the fusion group, `kernel` the selected
    provider; passes set both.
    """

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
    scalars: dict[str, str] = msgspec.field(default_factory=dict)
    group: str | None = None
    kernel: KernelBinding | None = None


class Function(Node, frozen=True):
    """Ops over parameters, weights, scalars and state; `results` name edges or parameters.

    `layers` are the layers that call it, empty outside the layer stack. `aliases` are edges that
    equal a parameter or an edge of an op by construction (an identity op, a point on a parameter);
    their `alias_of` is never an alias itself, and ops and results never read one. `block` is the
    block that the function was made of, defined at `span`.
    """

    name: str
    parameters: tuple[Parameter, ...]
    weights: tuple[Parameter, ...]
    scalars: tuple[Parameter, ...]
    state: tuple[StateSlot, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    layers: tuple[int, ...] = ()
    aliases: tuple[Edge, ...] = ()
    block: str = ""
    span: Span | None = None


class Program(Node, frozen=True):
    """One phase: prefill, decode or encode. Steps call functions in order.

    `inputs` are the runtime inputs (`tokens: i32[B, T]`, `positions: i32[B, T]`). A step's
    arguments are program inputs or results of earlier steps, its `state` maps the function's slots
    to `layer.<L>.<slot>`, its `weights` the function's weight parameters to semantic names.
    """

    phase: str
    inputs: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


class BuildIR(Node, frozen=True):
    """A circuit bound to one config and one dtype.

    `title` is the circuit's one-line description and `file` its path; `parents` are the circuits
    it inherits from, nearest first; `sources` maps every circuit file to its sha256. `capture`
    holds patterns of the checkpoints that the build must expose, such as
    `attention.rope_query_output` or `*`; `checkpoints.is_captured` reads them.
    """

    circuit: str
    version: int
    title: str
    file: str
    parents: tuple[str, ...]
    sources: dict[str, str]
    dtype: str
    dims: dict[str, int]
    capture: tuple[str, ...]
    programs: tuple[Program, ...]
    bindings: tuple[WeightBinding, ...]
    coverage: Coverage
    givens: tuple[Given, ...]
    resolutions: tuple[Resolution, ...] = ()
