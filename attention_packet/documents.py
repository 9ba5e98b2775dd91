"""packet.json and attention-metadata.json, each read strictly and bound to the other."""

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cke.attention_packet.files import JSON_LIMITS, PacketFolder, check_length, read_exact
from cke.attention_packet.refusal import refuse
from cke.errors import CkeError
from cke.schemas.attention_packet import (
    PACKET_SCHEMA,
    WRAPPER_KEYS,
    Packet,
    Snapshot,
)
from cke.schemas.reading import convert, parse_json, read_bytes

T = TypeVar("T")
MAX_REQUEST_ID = 2**64 - 1


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """The two documents of a packet, the hashes of their bytes, and the folder they lie in."""

    folder: PacketFolder
    packet: Packet
    packet_sha256: str
    snapshot: Snapshot
    metadata_sha256: str


def read_documents(packet_json: Path) -> Documents:
    """Read both documents; every key, type and range is proven, no payload is opened."""
    resolved = _resolve(packet_json)
    folder = PacketFolder(resolved.parent)
    folder.claim(resolved.name, "packet.json")
    raw = read_bytes(resolved, JSON_LIMITS)
    packet = _packet(raw, resolved)
    snapshot = _snapshot(packet, folder)
    return Documents(
        folder=folder,
        packet=packet,
        packet_sha256=hashlib.sha256(raw).hexdigest(),
        snapshot=snapshot,
        metadata_sha256=packet.metadata.sha256,
    )


def _resolve(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        refuse("CKE841", "expected packet.json, got no such file", file=path.name)


def _packet(raw: bytes, path: Path) -> Packet:
    value = parse_object(raw, path)
    schema = value.get("schema")
    if schema != PACKET_SCHEMA:
        refuse(
            "CKE840",
            f"expected schema `{PACKET_SCHEMA}`, got {schema!r}",
            file=path.name,
            path="$.schema",
        )
    return to_struct(value, Packet, path)


def _snapshot(packet: Packet, folder: PacketFolder) -> Snapshot:
    reference = packet.metadata
    file = folder.claim(reference.file, "$.metadata.file")
    check_length(file, reference.byte_count, "$.metadata.byteCount")
    if file.size > JSON_LIMITS.max_bytes:
        refuse(
            "CKE840",
            f"expected at most {JSON_LIMITS.max_bytes} bytes, got {file.size}",
            file=file.name,
        )
    raw = read_exact(file, reference.byte_count, reference.sha256, "$.metadata.sha256")
    value = parse_object(raw, file.path)
    for key in WRAPPER_KEYS:
        if key in value:
            refuse(
                "CKE840", f"expected the raw snapshot, got it wrapped in `{key}`", file=file.name
            )
    snapshot = to_struct(value, Snapshot, file.path)
    _check_request_ids(snapshot, file.name)
    return snapshot


def _check_request_ids(snapshot: Snapshot, file: str) -> None:
    identifiers = [("$.configuration.requestID", snapshot.configuration.request_id)]
    identifiers += [
        (f"$.records[{index}].requestID", record.request_id)
        for index, record in enumerate(snapshot.records)
    ]
    for path, value in identifiers:
        if value > MAX_REQUEST_ID:
            refuse(
                "CKE840", f"expected an unsigned 64-bit integer, got {value}", file=file, path=path
            )


def parse_object(raw: bytes, path: Path) -> dict[str, Any]:
    """Return a strict JSON object; any other value is refused."""
    value = parse_json(raw, path, JSON_LIMITS)
    if not isinstance(value, dict):
        refuse(
            "CKE840", f"expected an object, got `{type(value).__name__}`", file=path.name, path="$"
        )
    return value


def to_struct(value: dict[str, Any], kind: type[T], path: Path) -> T:
    """Return `value` as a struct; the refusal names the JSON path."""
    try:
        return convert(value, kind, path)
    except CkeError as error:
        first = error.diagnostics[0]
        refuse("CKE840", first.message, file=path.name, path=first.path)
