"""GraphIR: dataflow. Ops in single assignment over named edges, one program per phase.

Layers with the same signature are one function, called by one step per layer. The float64
interpreter runs this level; it needs nothing else but the weights.
"""

import msgspec

from cke.errors import Span
from cke.schemas.ir import Contract, Edge, KernelBinding, Node, Parameter, StateSlot, Step, Value


class Op(Node, frozen=True):
    """One operation: a row of the operator table applied to edges.

    `inputs` and `weights` follow the operator's declared operands; None is an absent optional
    operand. `attributes` holds the circuit's attributes; `layout` holds what the operator's shape
    rule derived (axis counts, broadcasts). `scalars` maps attributes whose value differs between
    the layers of the function to scalar parameters; they are not in `attributes`. A kernel and a
    reference are called as ``f(*inputs, *weights, **attributes, **layout)``. A stateful op takes
    its slot first and gives the new slot before its results; `state` names the slot.
    """

    id: str
    operator: str
    inputs: tuple[str | None, ...]
    weights: tuple[str | None, ...]
    state: str | None
    attributes: dict[str, Value]
    layout: dict[str, Value]
    results: tuple[Edge, ...]
    contract: Contract
    kernel: KernelBinding
    span: Span
    scalars: dict[str, str] = msgspec.field(default_factory=dict)


class Function(Node, frozen=True):
    """Ops over parameters, weights and state; `results` name edges or parameters in order.

    `aliases` are edges that equal a parameter or an edge of an op by construction: an op that is
    the identity, or a point on a parameter. Ops and results never read an alias, captures may.
    `block` is the block of the circuit that the function was made of, defined at `span`.
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
    """One phase: prefill, decode or encode. `outputs` name edges of the steps."""

    phase: str
    inputs: tuple[Parameter, ...]
    functions: tuple[Function, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]


class GraphIR(Node, frozen=True):
    """A circuit bound to one config and one dtype."""

    circuit: str
    version: int
    dtype: str
    dims: dict[str, int]
    programs: tuple[Program, ...]
    capture: tuple[str, ...] = ()
    title: str = ""
    file: str = ""
