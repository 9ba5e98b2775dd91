"""Attention packets on disk: the packet, the snapshot it binds, the analysis, and our additions.

`darkbloom.*` formats keep their own spelling; `wire_name` makes it. Unknown keys are refused.
Non-goal: rules that join fields (`cke.attention_packet` holds them).
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

PACKET_SCHEMA = "darkbloom.attention-packet.v1"
ANALYSIS_SCHEMA: Final = "darkbloom.attention-analysis.v1"
MIRROR_SCHEMA = "cke.incoming-kv-mirror.v1"
RUN_EVIDENCE_SCHEMA: Final = "cke.packet-run-evidence.v1"
MEASUREMENT_SCHEMA: Final = "cke.packet-measurement.v1"
PACKET_FILE = "packet.json"
METADATA_FILE = "attention-metadata.json"
MIRROR_FILE = "mirror.json"
WRAPPER_KEYS = ("attention_metadata", "snapshot")
TENSOR_NAMES = (
    "queries",
    "storedKeys",
    "storedValues",
    "incomingKeys",
    "incomingValues",
    "output",
)
TENSOR_FILES = {
    "queries": "queries.bin",
    "storedKeys": "stored-keys.bin",
    "storedValues": "stored-values.bin",
    "incomingKeys": "incoming-keys.bin",
    "incomingValues": "incoming-values.bin",
    "output": "output.bin",
}
ITEM_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}

_SPELLINGS = {"id": "ID", "kv": "KV", "sha256": "SHA256", "dtype": "DType"}


def wire_name(name: str) -> str:
    """The spelling of a field on disk: `request_id` is `requestID`, `shares_kv` is `sharesKV`."""
    first, *rest = name.split("_")
    return first + "".join(_SPELLINGS.get(word, word.capitalize()) for word in rest)


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=wire_name):
    """A JSON object whose keys are exactly the fields."""


Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
ModelId = Annotated[str, Meta(min_length=1, max_length=512)]
Dtype = Literal["float16", "bfloat16", "float32"]
Backend = Literal["paged", "contiguous"]
Size = Annotated[int, Meta(ge=1, le=2**40)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Position = Annotated[int, Meta(ge=0, le=2**40)]
RequestId = Annotated[int, Meta(ge=1)]
OutputIndex = Annotated[int, Meta(ge=1, le=1_000_000)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LayerIndex = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Shape = tuple[Size, Size, Size, Size]
Status = Literal["analyzed", "inconclusive", "refused"]
SampleOutcome = Literal[
    "not_selected",
    "graph_constructed_unconfirmed",
    "forward_failed",
    "confirmed",
    "discarded",
    "retired_unconfirmed",
]


class Identity(Wire, frozen=True, kw_only=True):
    """What was loaded and what it was given, by hash; the offline tool reopens neither."""

    model_id: ModelId
    artifact_sha256: Sha256
    input_sha256: Sha256
    backend: Backend


class MetadataReference(Wire, frozen=True, kw_only=True):
    """The snapshot file that the packet binds."""

    file: str
    byte_count: Count
    sha256: Sha256
    record_index: int


class Geometry(Wire, frozen=True, kw_only=True):
    """What the selected attention sees; absolute positions."""

    attention: str
    is_bidirectional: bool
    shares_kv: bool
    mtp_enabled: bool
    visible_start: int
    visible_end: int


class Capture(Wire, frozen=True, kw_only=True):
    """How the tensors were obtained."""

    evaluation_status: Literal["completed", "failed", "not_evaluated"]
    tensor_payload_bytes: Count


class TensorEntry(Wire, frozen=True, kw_only=True):
    """One packed row-major payload [batch, head, token, channel]; strides are in elements."""

    file: str
    dtype: Dtype
    byte_order: Literal["little"]
    shape: Shape
    packed_strides: tuple[int, int, int, int]
    byte_count: Count
    sha256: Sha256


class Tensors(Wire, frozen=True, kw_only=True):
    """The six payloads."""

    queries: TensorEntry
    stored_keys: TensorEntry
    stored_values: TensorEntry
    incoming_keys: TensorEntry
    incoming_values: TensorEntry
    output: TensorEntry


class Packet(Wire, frozen=True, kw_only=True):
    """packet.json."""

    schema: Literal["darkbloom.attention-packet.v1"]
    identity: Identity
    metadata: MetadataReference
    geometry: Geometry
    capture: Capture
    tensors: Tensors


class ObservedTensor(Wire, frozen=True, kw_only=True):
    """A tensor as the graph saw it; its strides are observational."""

    dtype: Dtype
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    graph_construction_strides: tuple[int, ...]


class Configuration(Wire, frozen=True, kw_only=True):
    """What the probe was asked to capture."""

    request_id: RequestId
    output_index: OutputIndex
    maximum_records: Annotated[int, Meta(ge=1, le=128)]


class Record(Wire, frozen=True, kw_only=True):
    """One attention call of the selected forward."""

    request_id: RequestId
    output_index: OutputIndex
    phase: str
    batch_index: int
    batch_size: int
    input_width: int
    storage_layer_index: LayerIndex
    model_layer_index: LayerIndex
    offset_before: Position
    offset_after: Position
    scale_bits: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    queries: ObservedTensor
    incoming_keys: ObservedTensor
    incoming_values: ObservedTensor
    output: ObservedTensor
    storage: Annotated[dict[str, ObservedTensor], Meta(min_length=1, max_length=64)]
    kernel_output_dtype: Dtype
    dispatch: str
    sinks_present: bool
    softcap_present: bool
    spans_present: bool


class Snapshot(Wire, frozen=True, kw_only=True):
    """attention-metadata.json: the raw snapshot, without a wrapper."""

    configuration: Configuration
    records: tuple[Record, ...]
    selected_forwards: Annotated[int, Meta(ge=0, le=128)]
    expected_owner_count: int
    forward_succeeded: bool
    sample_outcome: SampleOutcome
    refusals: dict[str, Annotated[int, Meta(ge=1)]]
    seed_token: Token | UnsetType = UNSET
    target_token: Token | UnsetType = UNSET


class NonfiniteCounts(Wire, frozen=True, kw_only=True):
    """How many values are not finite."""

    nan: int
    positive_infinity: int
    negative_infinity: int

    @property
    def total(self) -> int:
        """The number of non-finite values."""
        return self.nan + self.positive_infinity + self.negative_infinity


class Metrics(Wire, frozen=True, kw_only=True):
    """Error of one set of elements; a metric that does not exist is null, with its reason."""

    linf: float | None
    rmse: float | None
    relative_l2: float | None
    undefined_reason: str | None


class HeadMetrics(Metrics, frozen=True, kw_only=True):
    """Error of one query head."""

    query_head: int
    kv_head: int


class Comparison(Wire, frozen=True, kw_only=True):
    """Error over all elements, and for every query head."""

    global_: Metrics = msgspec.field(name="global")
    per_head: tuple[HeadMetrics, ...]


class Selection(Wire, frozen=True, kw_only=True):
    """The selected record."""

    request_id: int
    output_index: int
    phase: str
    batch_index: int
    batch_size: int
    input_width: int
    storage_layer_index: int
    model_layer_index: int
    offset_before: int
    offset_after: int


class Sample(Wire, frozen=True, kw_only=True):
    """How the selected forward ended."""

    selected_forwards: int
    expected_owner_count: int
    forward_succeeded: bool
    sample_outcome: str
    seed_token: int | None
    target_token: int | None
    refusals: dict[str, int]
    evaluation_status: str


class AnalysisGeometry(Geometry, frozen=True, kw_only=True):
    """The packet's geometry with the sizes that its tensors have."""

    query_heads: int
    kv_heads: int
    query_heads_per_kv_head: int = msgspec.field(name="queryHeadsPerKVHead")
    tokens: int
    head_dimension: int
    multiply_add_terms: int
    dispatch: str
    kernel_output_dtype: str
    dtypes: dict[str, str]


class Scale(Wire, frozen=True, kw_only=True):
    """The softmax scale: its bits, and the float32 they encode."""

    bits: int
    value: float


class RuntimeVersions(Wire, frozen=True, kw_only=True):
    """What computed the report."""

    cke: str
    python: str
    numpy: str
    msgspec: str


class RowConsistency(Wire, frozen=True, kw_only=True):
    """Elements whose native bits differ, among those compared."""

    mismatched_native_elements: int
    compared_native_elements: int


class LastRowConsistency(Wire, frozen=True, kw_only=True):
    """The last stored row against the row of the selected call."""

    stored_keys: RowConsistency
    stored_values: RowConsistency


class ReferenceComparison(Wire, frozen=True, kw_only=True):
    """The captured output against a reference that is named by `label`."""

    label: str
    comparison: Comparison
    intermediate_nonfinite: NonfiniteCounts


class RoundedReference(Wire, frozen=True, kw_only=True):
    """The captured output against the reference rounded to the output's dtype."""

    label: str
    dtype: str
    comparison: Comparison


class Counterfactual(ReferenceComparison, frozen=True, kw_only=True):
    """The reference computed from Q rounded to the storage dtype; never the primary one."""

    dtype: str
    difference_from_original_reference: Comparison
    query_rounding_difference: Comparison


class Float64Comparison(Wire, frozen=True, kw_only=True):
    """Our addition: how far the FP32 reference, and the output, lie from a float64 evaluation."""

    label: str
    reference_difference: Comparison
    output_difference: Comparison


class MirrorHistory(Wire, frozen=True, kw_only=True):
    """Stored rows against rows that were captured as they arrived."""

    mismatched_native_elements: int
    compared_native_elements: int
    first_mismatched_token: int | None
    mismatched_tokens: int


class MirrorCheck(Wire, frozen=True, kw_only=True):
    """Our addition: the history check that an independent incoming-KV mirror makes possible."""

    label: str
    mirror_sha256: str
    token_start: int
    token_end: int
    stored_keys: MirrorHistory
    stored_values: MirrorHistory


class Additions(Wire, frozen=True, kw_only=True):
    """What CKE adds; nothing here replaces or changes the primary comparison."""

    label: str
    float64_comparison: Float64Comparison | None
    incoming_mirror: MirrorCheck | None


class Refusal(Wire, frozen=True, kw_only=True):
    """Why a packet is refused."""

    code: str
    message: str
    file: str | None
    path: str | None


class Analysis(Wire, frozen=True, kw_only=True):
    """The report of `cke packet analyze`; it holds measurements and no verdict on them."""

    schema: Literal["darkbloom.attention-analysis.v1"] = ANALYSIS_SCHEMA
    status: Status
    refusal: Refusal | None = None
    inconclusive_reasons: tuple[str, ...] = ()
    interpretation: str | None = None
    packet_sha256: str | None = None
    metadata_sha256: str | None = None
    identity: Identity | None = None
    selection: Selection | None = None
    sample: Sample | None = None
    geometry: AnalysisGeometry | None = None
    scale: Scale | None = None
    runtime: RuntimeVersions
    tensor_sha256: dict[str, str] | None = None
    tensor_nonfinite: dict[str, NonfiniteCounts] | None = None
    last_row_consistency: LastRowConsistency | None = None
    original_query_reference: ReferenceComparison | None = None
    reference_rounded_to_output_dtype: RoundedReference | None = None
    narrowed_query_counterfactual: Counterfactual | None = None
    additions: Additions | None = None
    limitations: tuple[str, ...]


class Mirror(Wire, frozen=True, kw_only=True):
    """mirror.json: keys and values of tokens [start, end), each captured as it arrived."""

    schema: Literal["cke.incoming-kv-mirror.v1"]
    identity: Identity
    request_id: RequestId
    model_layer_index: LayerIndex
    token_start: Position
    token_end: Position
    keys: TensorEntry
    values: TensorEntry


class RunEvidence(Wire, frozen=True, kw_only=True):
    """Outside the packet: which program wrote it."""

    schema: Literal["cke.packet-run-evidence.v1"] = RUN_EVIDENCE_SCHEMA
    probe_executable: str
    probe_sha256: Sha256
    packet_sha256: Sha256
    cache_layout: str
    command: tuple[str, ...]
    runtime: dict[str, str]


class PacketMeasurement(Wire, frozen=True, kw_only=True):
    """What X-Ray may take from an analysed packet: numbers and their limits, no decision.

    Its own budget, and its own proof that both sides had the inputs of `tensor_sha256`, decide.
    """

    schema: Literal["cke.packet-measurement.v1"] = MEASUREMENT_SCHEMA
    considered_class: Literal["ATTENTION_ARITHMETIC_DIVERGENCE"] = "ATTENTION_ARITHMETIC_DIVERGENCE"
    packet_sha256: Sha256
    identity: Identity
    model_layer_index: int
    position: int
    dtype: str
    reduction_length: int
    tensor_sha256: dict[str, str]
    comparison: Comparison
    rounded_comparison: Comparison
    limitations: tuple[str, ...]
