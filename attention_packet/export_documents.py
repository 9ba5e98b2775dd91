"""The two documents of a packet that is exported, from the facts of one decode step."""

import hashlib
import json
import struct
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cke.attention_packet.geometry import packed_strides
from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import (
    ITEM_SIZES,
    METADATA_FILE,
    TENSOR_FILES,
    Capture,
    Configuration,
    Geometry,
    Identity,
    MetadataReference,
    ObservedTensor,
    Packet,
    Record,
    Snapshot,
    TensorEntry,
    Tensors,
)


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the producer knows of the step; every field is observed, none has a default to hide in.

    `storage` names the cache's own arrays, `layout` says how it is addressed.
    """

    model_id: str
    artifact_sha256: str
    input_sha256: str
    backend: str
    dispatch: str
    phase: str
    request_id: int
    output_index: int
    batch_size: int
    input_width: int
    storage_layer_index: int
    model_layer_index: int
    offset_before: int
    scale: float
    kernel_output_dtype: str
    window: int | None
    softcap: float | None
    sinks: bool
    spans: bool
    bidirectional: bool
    shares_kv: bool
    mtp: bool
    storage: dict[str, ObservedTensor]
    strides: dict[str, tuple[int, ...]]
    selected_forwards: int
    forward_succeeded: bool
    sample_outcome: str
    seed_token: int | None
    target_token: int | None
    refusals: dict[str, int]
    evaluation_status: str


class Payload(msgspec.Struct, frozen=True):
    """The native bytes of one tensor, as they go to disk."""

    dtype: str
    shape: tuple[int, int, int, int]
    raw: bytes


def native_payload(name: str, array: npt.NDArray[Any]) -> Payload:
    """The bytes of [heads, tokens, width], little-endian and row-major, as they are."""
    dtype = array.dtype.name
    if dtype not in ITEM_SIZES:
        refuse("CKE847", f"expected float16, bfloat16 or float32 for `{name}`, got {dtype}")
    if array.ndim != 3:
        refuse("CKE847", f"expected [heads, tokens, width] for `{name}`, got {list(array.shape)}")
    heads, tokens, width = array.shape
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    raw = bits.astype(f"<u{array.dtype.itemsize}", copy=False).tobytes()
    return Payload(dtype, (1, heads, tokens, width), raw)


def encode_document(value: msgspec.Struct) -> bytes:
    """Sorted, indented strict JSON; a value that the format does not hold is refused."""
    plain = msgspec.to_builtins(value)
    try:
        msgspec.convert(plain, type(value))
    except msgspec.ValidationError as error:
        refuse("CKE847", f"expected facts that the format holds: {error}")
    return json.dumps(plain, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"


def build_snapshot(payloads: dict[str, Payload], facts: StepFacts) -> Snapshot:
    """The raw snapshot with its one record."""
    return Snapshot(
        configuration=Configuration(
            request_id=facts.request_id, output_index=facts.output_index, maximum_records=64
        ),
        records=(_record(payloads, facts),),
        selected_forwards=facts.selected_forwards,
        expected_owner_count=1,
        forward_succeeded=facts.forward_succeeded,
        sample_outcome=msgspec.convert(facts.sample_outcome, Any),
        refusals=facts.refusals,
        seed_token=msgspec.UNSET if facts.seed_token is None else facts.seed_token,
        target_token=msgspec.UNSET if facts.target_token is None else facts.target_token,
    )


def _record(payloads: dict[str, Payload], facts: StepFacts) -> Record:
    def observed(name: str) -> ObservedTensor:
        payload = payloads[name]
        return ObservedTensor(
            dtype=msgspec.convert(payload.dtype, Any),
            shape=payload.shape,
            graph_construction_strides=facts.strides.get(name, ()),
        )

    return Record(
        request_id=facts.request_id,
        output_index=facts.output_index,
        phase=facts.phase,
        batch_index=0,
        batch_size=facts.batch_size,
        input_width=facts.input_width,
        storage_layer_index=facts.storage_layer_index,
        model_layer_index=facts.model_layer_index,
        offset_before=facts.offset_before,
        offset_after=facts.offset_before + 1,
        scale_bits=struct.unpack("<I", struct.pack("<f", facts.scale))[0],
        queries=observed("queries"),
        incoming_keys=observed("incomingKeys"),
        incoming_values=observed("incomingValues"),
        output=observed("output"),
        storage=facts.storage,
        kernel_output_dtype=msgspec.convert(facts.kernel_output_dtype, Any),
        dispatch=facts.dispatch,
        sinks_present=facts.sinks,
        softcap_present=facts.softcap is not None,
        spans_present=facts.spans,
    )


def build_packet(payloads: dict[str, Payload], facts: StepFacts, metadata: bytes) -> Packet:
    """packet.json, bound to the bytes of the metadata."""
    entries = {name: build_entry(TENSOR_FILES[name], payload) for name, payload in payloads.items()}
    return Packet(
        schema="darkbloom.attention-packet.v1",
        identity=Identity(
            model_id=facts.model_id,
            artifact_sha256=facts.artifact_sha256,
            input_sha256=facts.input_sha256,
            backend=msgspec.convert(facts.backend, Any),
        ),
        metadata=MetadataReference(
            file=METADATA_FILE,
            byte_count=len(metadata),
            sha256=hashlib.sha256(metadata).hexdigest(),
            record_index=0,
        ),
        geometry=Geometry(
            attention="full",
            is_bidirectional=facts.bidirectional,
            shares_kv=facts.shares_kv,
            mtp_enabled=facts.mtp,
            visible_start=0,
            visible_end=facts.offset_before + 1,
        ),
        capture=Capture(
            evaluation_status=msgspec.convert(facts.evaluation_status, Any),
            tensor_payload_bytes=sum(len(payload.raw) for payload in payloads.values()),
        ),
        tensors=Tensors(
            **{
                field: entries[wire]
                for field, wire in zip(
                    Tensors.__struct_fields__, Tensors.__struct_encode_fields__, strict=True
                )
            }
        ),
    )


def build_entry(file: str, payload: Payload) -> TensorEntry:
    """The entry that describes a payload exactly."""
    return TensorEntry(
        file=file,
        dtype=msgspec.convert(payload.dtype, Any),
        byte_order="little",
        shape=payload.shape,
        packed_strides=_four(packed_strides(payload.shape)),
        byte_count=len(payload.raw),
        sha256=hashlib.sha256(payload.raw).hexdigest(),
    )


def _four(numbers: tuple[int, ...]) -> tuple[int, int, int, int]:
    first, second, third, fourth = numbers
    return first, second, third, fourth
