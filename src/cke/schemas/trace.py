"""A trace: what one side computed, where, under which schedule; `cke.xray_execution_trace`.

A trace is a folder with ``trace.json`` (this struct) and ``tensors.safetensors``. `body_sha256`
covers the canonical JSON of `body`; `volatile` holds what differs between identical runs.
Every record names its own bytes, so a file can be renamed with its path and nothing changes.
"""

from typing import Literal

from msgspec import UNSET, UnsetType

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_execution_trace"
VERSION = 1

Phase = Literal["prefill", "decode", "encode"]
Level = Literal["tensor", "summary"]
"""What is kept of an edge: all its values, or the summary alone."""


class Summary(Node, frozen=True):
    """Min, max, mean and l2 over the finite elements; counts of NaN and infinite ones.

    A capture counts what its run computed: no padding rows, no empty cache rows.
    """

    min: float | None
    max: float | None
    mean: float | None
    l2: float | None
    nan: int
    inf: int


class Record(Node, frozen=True):
    """One captured tensor.

    `checkpoint_id` is `layer.<L>.<name>` or `<name>`; `dtype` is fp32, fp16, bf16, fp64, i32 or
    bool; `sha256` covers the logical little-endian bytes; `tensor_path` is a relative file, or
    `tensors.safetensors#key`, and None exactly when `level` is `summary`; then `sha256` may be
    None. `derivation` says how the producer obtained a point that it does not expose itself.
    `alias_of` is the checkpoint id whose value this one has by construction. `computed` is the
    dtype that the producer's arithmetic rounds this value to, where that is narrower than `dtype`;
    `through` the narrowest such dtype among everything that the value was made of.
    """

    checkpoint_id: str
    version: int
    role: str | None
    layer: int | None
    phase: Phase
    segment: int
    tensor_path: str | None
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    sha256: str | None
    summary: Summary
    kernel_id: str | None = None
    numerical_contract_id: str | None = None
    effective_contract_id: str | None = None
    derivation: str | None = None
    order: int | None = None
    alias_of: str | None = None
    computed: str | UnsetType = UNSET
    through: str | UnsetType = UNSET
    level: Level = "tensor"


class KernelBatch(Node, frozen=True):
    """Calls of one kernel within a segment.

    The numerical contract is the one resolved at build time, the effective one that of the kernel
    that was loaded; None when what was loaded is no registered kernel.
    """

    kernel_id: str
    numerical_contract_id: str
    effective_contract_id: str | None
    calls: int


class Segment(Node, frozen=True):
    """One forward: its tokens and positions by row, and what it did to the cache.

    `append_index` and `cache_token_count` are the values per row that the run used and reached;
    `teacher_forced` says that the tokens were given, not selected. A position of -1 is padding.
    """

    index: int
    phase: Phase
    tokens: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[int, ...], ...]
    cache_action: Literal["reset", "append", "preserve", "none"]
    append_index: tuple[int, ...]
    cache_token_count: tuple[int, ...]
    teacher_forced: bool
    kernel_batches: tuple[KernelBatch, ...] = ()


class CacheLayout(Node, frozen=True):
    """The physical cache: strides are in elements; None where the producer does not expose it."""

    layout_id: str
    layer_stride: int | None
    head_stride: int | None
    token_stride: int | None
    channel_stride: int | None
    capacity: int | None


class Producer(Node, frozen=True):
    """Who computed: `facts` are measured on the loaded model, never copied from the other side.

    `weight_dtypes` counts the loaded tensors by dtype; `settings` holds what can change a bit.
    `declared` names what a user stated and nothing measured, as for a dump made elsewhere.
    """

    name: str
    version: str
    dtype: str
    weight_dtypes: dict[str, int]
    settings: dict[str, Value]
    facts: dict[str, Value]
    declared: tuple[str, ...] = ()


class Identity(Node, frozen=True):
    """What was run. Unknown identity stays None and is disclosed; nothing comes from file names."""

    model_sha256: str | None
    family: str | None
    circuit: str | None
    manifest_sha256: str | None
    tokens_sha256: str


class Neutrality(Node, frozen=True):
    """The outcome of the capture's gate: control A against B, then the captured run against B.

    `finding` is the class of a failure; `differing` are the outputs that differ, `isolated` the
    boundaries that are neutral alone, `rejected` those that are not. `outputs_sha256` covers
    every output of control B: logits of each forward, and the final state. `evidence_program`
    says that capturing changed which kernels run.
    """

    status: Literal["neutral", "isolated", "evidence_program", "rejected", "not_applicable"]
    control_equal: bool | None
    outputs_equal: bool | None
    mode: str
    compared_outputs: int
    isolated: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    finding: Literal["RUNTIME_NOT_REPEATABLE", "CAPTURE_NOT_NEUTRAL"] | None = None
    differing: tuple[str, ...] = ()
    outputs_sha256: str | None = None


class Body(Node, frozen=True):
    """All that a trace states; `inputs` are the given tensors that are no tokens: pixels."""

    side: Literal["subject", "oracle"]
    producer: Producer
    identity: Identity
    segments: tuple[Segment, ...]
    records: tuple[Record, ...]
    cache_layout: CacheLayout | None
    threads: int
    mesh: dict[str, Value]
    environment: dict[str, Value]
    neutrality: Neutrality
    edges_total: int | None = None
    inputs: tuple[Record, ...] | UnsetType = UNSET


class Trace(Node, frozen=True):
    """The content of ``trace.json``."""

    schema: str
    version: int
    body: Body
    body_sha256: str
    volatile: dict[str, Value]
