"""The history check: stored rows against rows that were captured independently as they arrived.

A mirror is an artifact of its own, never part of the packet: `mirror.json` beside two payloads.
"""

import hashlib
from pathlib import Path

import numpy as np

from cke.attention_packet.documents import Documents, parse_object, to_struct
from cke.attention_packet.files import JSON_LIMITS, PacketFolder
from cke.attention_packet.geometry import check_entry
from cke.attention_packet.payload import NativeTensor, read_payloads
from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import Mirror, MirrorCheck, MirrorHistory
from cke.schemas.reading import read_bytes

LABEL = (
    "added by CKE: bitwise comparison of the stored history with an independently captured "
    "incoming-KV mirror"
)


def check_mirror(path: Path, documents: Documents, tensors: dict[str, NativeTensor]) -> MirrorCheck:
    """Compare the stored rows [tokenStart, tokenEnd) with the mirror's, bit by bit."""
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        refuse("CKE846", "expected mirror.json, got no such file", file=path.name)
    folder = PacketFolder(resolved.parent)
    folder.claim(resolved.name, "mirror.json")
    raw = read_bytes(resolved, JSON_LIMITS)
    mirror = to_struct(parse_object(raw, resolved), Mirror, resolved)
    _check_binding(mirror, documents, resolved.name)
    _check_shapes(mirror, documents, resolved.name)
    rows = read_payloads(folder, {"keys": mirror.keys, "values": mirror.values})
    start, end = mirror.token_start, mirror.token_end
    return MirrorCheck(
        label=LABEL,
        mirror_sha256=hashlib.sha256(raw).hexdigest(),
        token_start=start,
        token_end=end,
        stored_keys=_compare(tensors["storedKeys"], rows["keys"], start, end),
        stored_values=_compare(tensors["storedValues"], rows["values"], start, end),
    )


def _check_binding(mirror: Mirror, documents: Documents, file: str) -> None:
    record = documents.snapshot.records[0]
    if mirror.identity != documents.packet.identity:
        refuse(
            "CKE846",
            "expected the identity of the packet, got another",
            file=file,
            path="$.identity",
        )
    if mirror.request_id != record.request_id:
        refuse(
            "CKE846",
            f"expected request {record.request_id}, got {mirror.request_id}",
            file=file,
            path="$.requestID",
        )
    if mirror.model_layer_index != record.model_layer_index:
        refuse(
            "CKE846",
            f"expected layer {record.model_layer_index}, got {mirror.model_layer_index}",
            file=file,
            path="$.modelLayerIndex",
        )


def _check_shapes(mirror: Mirror, documents: Documents, file: str) -> None:
    stored = documents.packet.tensors.stored_keys
    tokens = mirror.token_end - mirror.token_start
    if not 0 < tokens <= stored.shape[2] - mirror.token_start:
        refuse(
            "CKE846",
            f"expected a range within [0, {stored.shape[2]}), "
            f"got [{mirror.token_start}, {mirror.token_end})",
            file=file,
            path="$.tokenEnd",
        )
    expected = (stored.dtype, (1, stored.shape[1], tokens, stored.shape[3]))
    for name, entry in (("keys", mirror.keys), ("values", mirror.values)):
        check_entry(entry, f"$.{name}", file)
        if (entry.dtype, entry.shape) != expected:
            refuse(
                "CKE846",
                f"expected {expected[0]} {list(expected[1])}, "
                f"got {entry.dtype} {list(entry.shape)}",
                file=file,
                path=f"$.{name}",
            )


def _compare(stored: NativeTensor, mirror: NativeTensor, start: int, end: int) -> MirrorHistory:
    differs = stored.bits[:, start:end] != mirror.bits
    tokens = np.flatnonzero(differs.any(axis=(0, 2)))
    return MirrorHistory(
        mismatched_native_elements=int(np.count_nonzero(differs)),
        compared_native_elements=int(differs.size),
        first_mismatched_token=start + int(tokens[0]) if tokens.size else None,
        mismatched_tokens=int(tokens.size),
    )
