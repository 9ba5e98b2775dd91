"""What the IR levels share: tensor types, contracts, checkpoints and state slots.

Dims are ints, or the symbols B (batch), T (query positions) and S (key positions), which stay
symbolic through every level. Non-goal: logic; node files hold none.
"""

from typing import Any

import msgspec

from cke.errors import Span

Dim = int | str
Value = Any
"""An attribute: None, bool, int, float, str, a list of values, or a dict such as a rope scaling."""


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every IR node."""


class TensorType(Node, frozen=True):
    """Named axes, their sizes and a dtype: f32, bf16, f16, f64, i32 or bool."""

    axes: tuple[str, ...]
    shape: tuple[Dim, ...]
    dtype: str


class Contract(Node, frozen=True):
    """A numerical contract, field by field; an absent field asks for nothing.

    Sections and fields are those of ``contracts/xray.md`` section 10; ``model`` and ``storage``
    are already dtypes here.
    """

    storage: dict[str, Value] = {}
    compute: dict[str, Value] = {}
    rounding: dict[str, Value] = {}
    reduction: dict[str, Value] = {}
    position: dict[str, Value] = {}
    threading: dict[str, Value] = {}
    execution: dict[str, Value] = {}


class Checkpoint(Node, frozen=True):
    """A versioned semantic id of an edge.

    `name` is `<instance>.<point>` for a point of a taxonomy (`attention.rope_query_output`) and
    `edge/<instance>/<target>/<operator>` for a derived one; `taxonomy` is None for the latter.
    The id in a layer is `layer.<L>.<name>`.
    """

    name: str
    point: str | None
    taxonomy: str | None
    version: int
    instance: str
    role: str | None = None


class Edge(Node, frozen=True):
    """A named, typed value; `alias_of` names the edge that it equals by construction.

    An edge that is not `live` is read by nothing and captured by nothing: a kernel that does not
    expose it may be chosen, and the generated code does not bind it.
    """

    name: str
    type: TensorType
    checkpoint: Checkpoint
    span: Span
    alias_of: str | None = None
    live: bool = True


class KernelBinding(Node, frozen=True):
    """The one provider of an op. Ops with the same `group` are one call; each names its results.

    `results` are the indices of the op's results among those of the call.
    """

    kernel_id: str
    function: str
    group: str | None = None
    results: tuple[int, ...] = (0,)
    contract_id: str = ""


class Parameter(Node, frozen=True):
    """What a function takes: an edge, a weight or a scalar, by name and type."""

    name: str
    type: TensorType


class StateSlot(Node, frozen=True):
    """State of one instance: kind `cache`, `shift` or `carry`, its lanes, and a window in rows.

    A cache lane has axes `[B, S, …]`; `keep` is the row count of a shift.
    """

    name: str
    kind: str
    lanes: tuple[Parameter, ...]
    window: int | None = None
    keep: int | None = None
    span: Span | None = None


class Step(Node, frozen=True):
    """One call of a function: at `layer`, or once when None.

    `arguments` and `results` are edges of the program; `weights` maps the function's weight
    parameters to semantic names, `state` its slots to slots of the program, `scalars` to values.
    """

    function: str
    layer: int | None
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    weights: dict[str, str]
    state: dict[str, str]
    scalars: dict[str, float] = {}
