"""What the documents must say about shapes, strides, byte counts and positions.

All of it is proven before a payload file is opened: nothing is allocated for a lying packet.
"""

import math
import struct

import msgspec

from cke.attention_packet.documents import Documents
from cke.attention_packet.files import check_name
from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import (
    ITEM_SIZES,
    PACKET_FILE,
    ObservedTensor,
    Packet,
    Record,
    TensorEntry,
)

MAX_PAYLOAD_BYTES = 32 << 20


class Sizes(msgspec.Struct, frozen=True):
    """QH, KVH, T and D of the selected call."""

    query_heads: int
    kv_heads: int
    tokens: int
    width: int

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.query_heads // self.kv_heads

    @property
    def terms(self) -> int:
        """Multiply-add terms of one reference: scores and weighted values."""
        return 2 * self.query_heads * self.tokens * self.width


def tensor_entries(packet: Packet) -> dict[str, TensorEntry]:
    """The six entries by their names on disk."""
    tensors = packet.tensors
    names = tensors.__struct_encode_fields__
    return {
        wire: getattr(tensors, field)
        for wire, field in zip(names, tensors.__struct_fields__, strict=True)
    }


def check_payload_descriptions(packet: Packet) -> None:
    """Refuse an entry that is not packed, and byte counts that do not add up."""
    entries = tensor_entries(packet)
    for name, entry in entries.items():
        check_entry(entry, f"$.tensors.{name}")
    total = sum(entry.byte_count for entry in entries.values())
    if total > MAX_PAYLOAD_BYTES:
        refuse(
            "CKE843",
            f"expected at most {MAX_PAYLOAD_BYTES} payload bytes, got {total}",
            file=PACKET_FILE,
        )
    declared = packet.capture.tensor_payload_bytes
    if declared != total:
        refuse(
            "CKE843",
            f"expected {total} bytes as the sum of the payloads, got {declared}",
            file=PACKET_FILE,
            path="$.capture.tensorPayloadBytes",
        )


def check_entry(entry: TensorEntry, where: str, file: str = PACKET_FILE) -> None:
    """Refuse a payload that its own entry describes wrongly."""
    check_name(entry.file, f"{where}.file")
    strides = packed_strides(entry.shape)
    if entry.packed_strides != strides:
        refuse(
            "CKE843",
            f"expected packed strides {list(strides)}, got {list(entry.packed_strides)}",
            file=file,
            path=f"{where}.packedStrides",
        )
    size = math.prod(entry.shape) * ITEM_SIZES[entry.dtype]
    if entry.byte_count != size:
        refuse(
            "CKE843",
            f"expected {size} bytes for {entry.dtype} {list(entry.shape)}, got {entry.byte_count}",
            file=file,
            path=f"{where}.byteCount",
        )


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def check_geometry(documents: Documents) -> Sizes:
    """Refuse shapes, dtypes and positions that contradict each other; return the sizes."""
    packet, record = documents.packet, documents.snapshot.records[0]
    _check_identity(documents, record)
    _check_positions(packet, record)
    sizes = _check_shapes(packet, record)
    _check_observed(packet, record)
    _check_dtypes(packet, record)
    read_scale(record)
    return sizes


def _check_identity(documents: Documents, record: Record) -> None:
    asked = documents.snapshot.configuration
    if (record.request_id, record.output_index) != (asked.request_id, asked.output_index):
        refuse(
            "CKE844",
            f"expected request {asked.request_id} output {asked.output_index}, "
            f"got request {record.request_id} output {record.output_index}",
            file=documents.packet.metadata.file,
            path="$.records[0]",
        )


def _check_positions(packet: Packet, record: Record) -> None:
    geometry = packet.geometry
    if record.offset_after != record.offset_before + 1:
        refuse(
            "CKE844",
            f"expected offsetAfter {record.offset_before + 1}, got {record.offset_after}",
            file=packet.metadata.file,
            path="$.records[0].offsetAfter",
        )
    if (geometry.visible_start, geometry.visible_end) != (0, record.offset_after):
        refuse(
            "CKE844",
            f"expected the visible range [0, {record.offset_after}), "
            f"got [{geometry.visible_start}, {geometry.visible_end})",
            file=PACKET_FILE,
            path="$.geometry",
        )


def _check_shapes(packet: Packet, record: Record) -> Sizes:
    query_heads, width = packet.tensors.queries.shape[1], packet.tensors.queries.shape[3]
    kv_heads, tokens = packet.tensors.stored_keys.shape[1], record.offset_after
    expected = {
        "queries": (1, query_heads, 1, width),
        "storedKeys": (1, kv_heads, tokens, width),
        "storedValues": (1, kv_heads, tokens, width),
        "incomingKeys": (1, kv_heads, 1, width),
        "incomingValues": (1, kv_heads, 1, width),
        "output": (1, query_heads, 1, width),
    }
    for name, entry in tensor_entries(packet).items():
        if entry.shape != expected[name]:
            refuse(
                "CKE844",
                f"expected shape {list(expected[name])}, got {list(entry.shape)}",
                file=PACKET_FILE,
                path=f"$.tensors.{name}.shape",
            )
    if query_heads % kv_heads:
        refuse(
            "CKE844",
            f"expected a multiple of {kv_heads} kv heads, got {query_heads} query heads",
            file=PACKET_FILE,
            path="$.tensors.queries.shape",
        )
    return Sizes(query_heads, kv_heads, tokens, width)


def _check_observed(packet: Packet, record: Record) -> None:
    pairs: dict[str, tuple[TensorEntry, ObservedTensor]] = {
        "queries": (packet.tensors.queries, record.queries),
        "incomingKeys": (packet.tensors.incoming_keys, record.incoming_keys),
        "incomingValues": (packet.tensors.incoming_values, record.incoming_values),
        "output": (packet.tensors.output, record.output),
    }
    for name, (entry, observed) in pairs.items():
        if (entry.dtype, entry.shape) != (observed.dtype, observed.shape):
            refuse(
                "CKE844",
                f"expected {observed.dtype} {list(observed.shape)} as the snapshot observed, "
                f"got {entry.dtype} {list(entry.shape)}",
                file=PACKET_FILE,
                path=f"$.tensors.{name}",
            )


def _check_dtypes(packet: Packet, record: Record) -> None:
    tensors = packet.tensors
    storage = tensors.stored_keys.dtype
    for name in ("storedValues", "incomingKeys", "incomingValues"):
        dtype = tensor_entries(packet)[name].dtype
        if dtype != storage:
            refuse(
                "CKE844",
                f"expected the dtype of the stored keys, {storage}, got {dtype}",
                file=PACKET_FILE,
                path=f"$.tensors.{name}.dtype",
            )
    for name, observed in record.storage.items():
        if observed.dtype != storage:
            refuse(
                "CKE844",
                f"expected the dtype of the stored keys, {storage}, got {observed.dtype}",
                file=packet.metadata.file,
                path=f"$.records[0].storage.{name}.dtype",
            )
    if record.kernel_output_dtype not in (tensors.output.dtype, storage):
        refuse(
            "CKE844",
            f"expected the dtype of the output, {tensors.output.dtype}, or of the storage, "
            f"{storage}, got {record.kernel_output_dtype}",
            file=packet.metadata.file,
            path="$.records[0].kernelOutputDType",
        )


def read_scale(record: Record) -> float:
    """The float32 that scaleBits encodes; refused unless it is finite and positive."""
    value: float = struct.unpack("<f", struct.pack("<I", record.scale_bits))[0]
    if not (math.isfinite(value) and value > 0):
        refuse(
            "CKE844",
            f"expected the bits of a finite positive float32, got {record.scale_bits:#010x}",
            path="$.records[0].scaleBits",
        )
    return value
