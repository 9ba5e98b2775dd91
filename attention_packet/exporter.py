"""The exporter's pure part: six arrays and the facts of one decode step become a packet folder.

Nothing is written unless the layer is supported and the step is confirmed. `packet.json` comes
last and atomically, so that a folder without it is no packet.
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cke.attention_packet.export_documents import (
    Payload,
    StepFacts,
    build_packet,
    build_snapshot,
    encode_document,
    native_payload,
)
from cke.attention_packet.geometry import MAX_PAYLOAD_BYTES
from cke.attention_packet.refusal import refuse
from cke.attention_packet.report import write_new
from cke.attention_packet.selection import DISPATCHES, PHASES
from cke.schemas.attention_packet import (
    METADATA_FILE,
    PACKET_FILE,
    TENSOR_FILES,
    TENSOR_NAMES,
    RunEvidence,
)
from cke.schemas.reading import to_json, write_atomic

Arrays = Mapping[str, npt.NDArray[Any]]


class Exported(msgspec.Struct, frozen=True):
    """`captured` with the packet's hash, or `inconclusive` with nothing written."""

    status: str
    packet_sha256: str | None


def export_packet(arrays: Arrays, facts: StepFacts, out: Path) -> Exported:
    """Write the eight files into the new folder `out`, if the selected forward is confirmed.

    `arrays`: queries and output [QH, 1, D], storedKeys and storedValues [KVH, T, D],
    incomingKeys and incomingValues [KVH, 1, D]; stored rows in the order of their tokens.
    """
    check_layer(facts)
    if not _confirmed(facts):
        return Exported("inconclusive", None)
    payloads = _payloads(arrays)
    _check_shapes(payloads, facts)
    try:
        out.mkdir(mode=0o700, parents=False, exist_ok=False)
    except FileExistsError:
        refuse("CKE847", "expected a folder that does not exist yet", file=str(out))
    except OSError as error:
        refuse("CKE847", f"the folder cannot be made: {error.strerror}", file=str(out))
    try:
        return Exported("captured", _write(payloads, facts, out))
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def check_layer(facts: StepFacts) -> None:
    """Refuse a layer or a call that the packet format does not hold."""
    rules = [
        (facts.window is not None, "a causal layer without a window", f"window {facts.window}"),
        (facts.softcap is not None, "a layer without a softcap", f"softcap {facts.softcap}"),
        (facts.sinks, "a layer without sinks", "sinks"),
        (facts.spans, "a layer without spans", "spans"),
        (facts.bidirectional, "causal attention", "bidirectional attention"),
        (facts.shares_kv, "a layer with its own keys and values", "shared ones"),
        (facts.mtp, "a step without MTP", "MTP"),
        (facts.batch_size != 1, "one sequence", f"a batch of {facts.batch_size}"),
        (facts.input_width != 1, "one token", f"{facts.input_width} tokens"),
        (facts.phase not in PHASES, "a decode step", f"`{facts.phase}`"),
        (
            facts.dispatch not in DISPATCHES.get(facts.backend, ()),
            f"a dispatch of `{facts.backend}`",
            f"`{facts.dispatch}`",
        ),
    ]
    for broken, expected, got in rules:
        if broken:
            refuse("CKE847", f"expected {expected}, got {got}")


def _confirmed(facts: StepFacts) -> bool:
    return (
        facts.forward_succeeded
        and facts.sample_outcome == "confirmed"
        and facts.selected_forwards == 1
        and facts.seed_token is not None
        and facts.target_token is not None
        and not facts.refusals
        and facts.evaluation_status == "completed"
    )


def _payloads(arrays: Arrays) -> dict[str, Payload]:
    if sorted(arrays) != sorted(TENSOR_NAMES):
        refuse("CKE847", f"expected the arrays {sorted(TENSOR_NAMES)}, got {sorted(arrays)}")
    return {name: native_payload(name, np.asarray(arrays[name])) for name in TENSOR_NAMES}


def _check_shapes(payloads: dict[str, Payload], facts: StepFacts) -> None:
    _, heads, _, width = payloads["queries"].shape
    kv_heads, tokens = payloads["storedKeys"].shape[1], facts.offset_before + 1
    stored, incoming = (1, kv_heads, tokens, width), (1, kv_heads, 1, width)
    expected = {
        "queries": (1, heads, 1, width),
        "storedKeys": stored,
        "storedValues": stored,
        "incomingKeys": incoming,
        "incomingValues": incoming,
        "output": (1, heads, 1, width),
    }
    for name, payload in payloads.items():
        wanted, got = list(expected[name][1:]), list(payload.shape[1:])
        if got != wanted:
            refuse("CKE847", f"expected {wanted} for `{name}`, got {got}")
        if 0 in got:
            refuse("CKE847", f"expected every axis of `{name}` to hold something, got {got}")
    if heads % kv_heads:
        refuse("CKE847", f"expected a multiple of {kv_heads} kv heads, got {heads} query heads")
    dtypes = {
        name: payloads[name].dtype for name in TENSOR_NAMES if name not in ("queries", "output")
    }
    if len(set(dtypes.values())) != 1:
        refuse("CKE847", f"expected one dtype of keys and values, got {dtypes}")
    if facts.kernel_output_dtype not in (payloads["output"].dtype, payloads["storedKeys"].dtype):
        refuse(
            "CKE847",
            f"expected a kernel output dtype of output or storage, got {facts.kernel_output_dtype}",
        )
    total = sum(len(payload.raw) for payload in payloads.values())
    if total > MAX_PAYLOAD_BYTES:
        refuse("CKE847", f"expected at most {MAX_PAYLOAD_BYTES} payload bytes, got {total}")


def _write(payloads: dict[str, Payload], facts: StepFacts, out: Path) -> str:
    for name, payload in payloads.items():
        write_atomic(out / TENSOR_FILES[name], payload.raw, mode=0o600)
    metadata = encode_document(build_snapshot(payloads, facts))
    write_atomic(out / METADATA_FILE, metadata, mode=0o600)
    packet = encode_document(build_packet(payloads, facts, metadata))
    write_atomic(out / PACKET_FILE, packet, mode=0o600)
    return hashlib.sha256(packet).hexdigest()


def write_run_evidence(path: Path, evidence: RunEvidence, packet_folder: Path) -> None:
    """Write which program wrote the packet, in a new file outside the packet's folder."""
    if path.resolve().is_relative_to(packet_folder.resolve()):
        refuse("CKE847", "expected run evidence outside the packet folder", file=str(path))
    write_new(path, to_json(evidence))


def hash_file(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
