"""Packets for tests: built from arrays, changed by the test, hashed, written.

`attend64` is the tests' own attention, written without the analyzer's code.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cke.attention_packet.analyze import Outcome, analyze

FILES = {
    "queries": "queries.bin",
    "storedKeys": "stored-keys.bin",
    "storedValues": "stored-values.bin",
    "incomingKeys": "incoming-keys.bin",
    "incomingValues": "incoming-values.bin",
    "output": "output.bin",
}
HEX = "0123456789abcdef" * 4


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Native bits, rounded to nearest even by a route that is not the analyzer's."""
    values = np.asarray(values, dtype=np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    import ml_dtypes

    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def floats_of(bits: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values of native bits, by a route that is not the analyzer's."""
    if dtype == "float32":
        return bits.view(np.float32).astype(np.float64)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float64)
    import ml_dtypes

    return bits.view(ml_dtypes.bfloat16).astype(np.float64)


def attend64(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Plain float64 attention: q [QH, D], k and v [KVH, T, D]."""
    group = q.shape[0] // k.shape[0]
    rows = []
    for head, row in enumerate(q):
        scores = [float(np.dot(row, key)) * scale for key in k[head // group]]
        top = max(scores)
        weights = [np.exp(score - top) for score in scores]
        rows.append(
            sum(w * x for w, x in zip(weights, v[head // group], strict=True)) / sum(weights)
        )
    return np.stack(rows)


@dataclass
class PacketBuilder:
    """A packet under construction; `payloads` are native bits [1, heads, tokens, D]."""

    payloads: dict[str, np.ndarray]
    dtypes: dict[str, str]
    packet: dict[str, Any] = field(default_factory=dict)
    snapshot: dict[str, Any] = field(default_factory=dict)
    raw_packet: Callable[[bytes], bytes] = lambda raw: raw
    raw_snapshot: Callable[[bytes], bytes] = lambda raw: raw

    @property
    def record(self) -> dict[str, Any]:
        return self.snapshot["records"][0]

    @property
    def tensors(self) -> dict[str, Any]:
        return self.packet["tensors"]

    def write(self, folder: Path) -> Path:
        """Write all files; metadata byte count and hash are those of the bytes written."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, bits in self.payloads.items():
            folder.joinpath(FILES[name]).write_bytes(bits.tobytes())
        return self.write_documents(folder)

    def write_documents(self, folder: Path) -> Path:
        raw = self.raw_snapshot(json.dumps(self.snapshot).encode())
        folder.joinpath("attention-metadata.json").write_bytes(raw)
        if "metadata" in self.packet:
            reference = self.packet["metadata"]
            if reference.get("byteCount") == "actual":
                reference["byteCount"] = len(raw)
            if reference.get("sha256") == "actual":
                reference["sha256"] = hashlib.sha256(raw).hexdigest()
        path = folder / "packet.json"
        path.write_bytes(self.raw_packet(json.dumps(self.packet).encode()))
        return path


def entry(name: str, bits: np.ndarray, dtype: str) -> dict[str, Any]:
    _, heads, tokens, width = bits.shape
    return {
        "file": FILES[name],
        "dtype": dtype,
        "byteOrder": "little",
        "shape": list(bits.shape),
        "packedStrides": [heads * tokens * width, tokens * width, width, 1],
        "byteCount": bits.nbytes,
        "sha256": hashlib.sha256(bits.tobytes()).hexdigest(),
    }


def observed(bits: np.ndarray, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(bits.shape), "graphConstructionStrides": [7, -3, 0, 2]}


def values_packet(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    output: np.ndarray | None = None,
    *,
    scale: float = 0.25,
    query: str = "float32",
    storage: str = "bfloat16",
    out: str = "float32",
) -> PacketBuilder:
    """A packet of given values; the output is float64 attention of the stored bits by default."""
    q_bits, k_bits, v_bits = bits_of(q, query), bits_of(k, storage), bits_of(v, storage)
    if output is None:
        exact = (floats_of(q_bits, query), floats_of(k_bits, storage), floats_of(v_bits, storage))
        output = attend64(*exact, float(np.float32(scale)))
    payloads = {
        "queries": q_bits[None, :, None],
        "storedKeys": k_bits[None],
        "storedValues": v_bits[None],
        "incomingKeys": k_bits[None, :, -1:].copy(),
        "incomingValues": v_bits[None, :, -1:].copy(),
        "output": bits_of(output, out)[None, :, None],
    }
    return bits_packet(payloads, query=query, storage=storage, out=out, scale=scale)


def bits_packet(
    payloads: dict[str, np.ndarray],
    *,
    query: str = "float32",
    storage: str = "bfloat16",
    out: str = "float32",
    scale: float = 0.25,
) -> PacketBuilder:
    """A confirmed paged decode packet of the given native bits."""
    dtypes = {name: storage for name in FILES} | {"queries": query, "output": out}
    tokens = payloads["storedKeys"].shape[2]
    seen = {name: observed(payloads[name], dtypes[name]) for name in FILES}
    record = {
        "requestID": 41,
        "outputIndex": 2,
        "phase": "decode",
        "batchIndex": 0,
        "batchSize": 1,
        "inputWidth": 1,
        "storageLayerIndex": 3,
        "modelLayerIndex": 5,
        "offsetBefore": tokens - 1,
        "offsetAfter": tokens,
        "scaleBits": struct.unpack("<I", struct.pack("<f", scale))[0],
        "queries": seen["queries"],
        "incomingKeys": seen["incomingKeys"],
        "incomingValues": seen["incomingValues"],
        "output": seen["output"],
        "storage": {
            "pages.k": {"dtype": storage, "shape": [9, 16, 2, 4], "graphConstructionStrides": [1]},
            "pages.v": {"dtype": storage, "shape": [9, 16, 2, 4], "graphConstructionStrides": []},
        },
        "kernelOutputDType": out,
        "dispatch": "paged_fixed_decode",
        "sinksPresent": False,
        "softcapPresent": False,
        "spansPresent": False,
    }
    snapshot = {
        "configuration": {"requestID": 41, "outputIndex": 2, "maximumRecords": 64},
        "records": [record],
        "selectedForwards": 1,
        "expectedOwnerCount": 1,
        "forwardSucceeded": True,
        "sampleOutcome": "confirmed",
        "seedToken": 11,
        "targetToken": 12,
        "refusals": {},
    }
    packet = {
        "schema": "darkbloom.attention-packet.v1",
        "identity": {
            "modelID": "actual-model-id",
            "artifactSHA256": HEX,
            "inputSHA256": HEX[::-1],
            "backend": "paged",
        },
        "metadata": {
            "file": "attention-metadata.json",
            "byteCount": "actual",
            "sha256": "actual",
            "recordIndex": 0,
        },
        "geometry": {
            "attention": "full",
            "isBidirectional": False,
            "sharesKV": False,
            "mtpEnabled": False,
            "visibleStart": 0,
            "visibleEnd": tokens,
        },
        "capture": {
            "evaluationStatus": "completed",
            "tensorPayloadBytes": sum(bits.nbytes for bits in payloads.values()),
        },
        "tensors": {name: entry(name, payloads[name], dtypes[name]) for name in FILES},
    }
    return PacketBuilder(payloads, dtypes, packet, snapshot)


def random_values(
    seed: int = 0, *, heads: int = 4, kv_heads: int = 2, width: int = 4, tokens: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = ((heads, width), (kv_heads, tokens, width), (kv_heads, tokens, width))
    q, k, v = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return q, k, v


def example(seed: int = 0, **options: Any) -> PacketBuilder:
    """The geometry of the specification's example: QH 4, KVH 2, D 4, T 3, 256 payload bytes."""
    return values_packet(*random_values(seed), **options)


def run(builder: PacketBuilder, folder: Path, mirror: Path | None = None) -> Outcome:
    return analyze(builder.write(folder), mirror)
