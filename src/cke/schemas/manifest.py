"""The manifest beside a generated package: everything that later joins need.

It holds GraphIR and CallIR, every checkpoint bound to its operation and kernel, the weight
bindings and the resolutions. Its hash covers the canonical JSON of the body.
"""

import msgspec

from cke.schemas.bindings import Coverage, WeightBinding
from cke.schemas.call_ir import CallIR
from cke.schemas.graph_ir import GraphIR
from cke.schemas.ir import Checkpoint, Node, TensorType, Value

SCHEMA = "cke.checkpoint_manifest"
VERSION = 1


class CheckpointBinding(Node, frozen=True):
    """A checkpoint bound to an exact operation; equal at every IR level (XRAY-56)."""

    checkpoint: Checkpoint
    edge: str
    type: TensorType
    phase: str
    function: str
    layers: tuple[int, ...]
    operation: str
    operator: str
    call: str
    kernel_id: str
    kernel_function: str
    result: int
    alias_of: str | None
    order: int
    live: bool = True
    layout: str = "row_major"


class Rejection(Node, frozen=True):
    """Why a provider was not selected: the stage of the filter, and the reason."""

    kernel_id: str
    stage: str
    reason: str


class Resolution(Node, frozen=True):
    """One provider selected for one or more ops, and every rejection."""

    phase: str
    function: str
    ops: tuple[str, ...]
    kernel_id: str
    contract_id: str
    rejections: tuple[Rejection, ...]


class Given(Node, frozen=True):
    """A resolved given of an instance: its value and the text that supplied it."""

    instance: str
    layers: tuple[int, ...]
    name: str
    value: Value
    supplied_by: str


class Manifest(Node, frozen=True):
    """What `cke build` decided, as data.

    `sources` maps circuit files, `kernels` the files of the selected kernels and their contracts,
    to their sha256. `lines` maps a module's generated lines to circuit lines (`file:line`).
    """

    schema: str
    version: int
    circuit: str
    circuit_version: int
    parents: tuple[str, ...]
    sources: dict[str, str]
    kernels: dict[str, str]
    dtype: str
    capture: tuple[str, ...]
    graph: GraphIR
    calls: CallIR
    checkpoints: tuple[CheckpointBinding, ...]
    bindings: tuple[WeightBinding, ...]
    coverage: Coverage
    resolutions: tuple[Resolution, ...]
    givens: tuple[Given, ...]
    lines: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
