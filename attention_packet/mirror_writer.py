"""Write an incoming-KV mirror: the rows of every forward, as the cache's append was given them."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cke.attention_packet.export_documents import (
    Payload,
    StepFacts,
    build_entry,
    encode_document,
    native_payload,
)
from cke.attention_packet.refusal import refuse
from cke.schemas.attention_packet import MIRROR_FILE, Identity, Mirror
from cke.schemas.reading import write_atomic


class MirrorRows(msgspec.Struct, frozen=True):
    """Keys and values [KVH, T, D] of tokens 0 … T - 1, collected call by call."""

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]


def write_mirror(out: Path, rows: MirrorRows, facts: StepFacts) -> str:
    """Write the new folder `out`, `mirror.json` last; return the hash of `mirror.json`."""
    payloads = {
        "keys": native_payload("keys", np.asarray(rows.keys)),
        "values": native_payload("values", np.asarray(rows.values)),
    }
    document = encode_document(_mirror(payloads, facts))
    try:
        out.mkdir(mode=0o700)
    except OSError as error:
        refuse("CKE846", f"the folder cannot be made: {error.strerror}", file=str(out))
    try:
        for name, payload in payloads.items():
            write_atomic(out / f"{name}.bin", payload.raw, mode=0o600)
        write_atomic(out / MIRROR_FILE, document, mode=0o600)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return hashlib.sha256(document).hexdigest()


def _mirror(payloads: dict[str, Payload], facts: StepFacts) -> Mirror:
    return Mirror(
        schema="cke.incoming-kv-mirror.v1",
        identity=Identity(
            model_id=facts.model_id,
            artifact_sha256=facts.artifact_sha256,
            input_sha256=facts.input_sha256,
            backend=msgspec.convert(facts.backend, Any),
        ),
        request_id=facts.request_id,
        model_layer_index=facts.model_layer_index,
        token_start=0,
        token_end=payloads["keys"].shape[2],
        keys=build_entry("keys.bin", payloads["keys"]),
        values=build_entry("values.bin", payloads["values"]),
    )
