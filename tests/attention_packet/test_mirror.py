"""A mirror shows the wrong history that the packet alone cannot show."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.attention_packet.analyze import analyze
from tests.attention_packet.build import (
    PacketBuilder,
    bits_of,
    example,
    random_values,
    values_packet,
)
from tests.attention_packet.conftest import refusal_text


def write_mirror(
    folder: Path,
    builder: PacketBuilder,
    k: np.ndarray,
    v: np.ndarray,
    start: int = 0,
    **changes: Any,
) -> Path:
    folder.mkdir()
    mirror: dict[str, Any] = {
        "schema": "cke.incoming-kv-mirror.v1",
        "identity": builder.packet["identity"],
        "requestID": 41,
        "modelLayerIndex": 5,
        "tokenStart": start,
        "tokenEnd": start + k.shape[1],
    }
    for name, values in (("keys", k), ("values", v)):
        bits = bits_of(values, "bfloat16")[None]
        _, heads, tokens, width = bits.shape
        folder.joinpath(f"{name}.bin").write_bytes(bits.tobytes())
        mirror[name] = {
            "file": f"{name}.bin",
            "dtype": "bfloat16",
            "byteOrder": "little",
            "shape": list(bits.shape),
            "packedStrides": [heads * tokens * width, tokens * width, width, 1],
            "byteCount": bits.nbytes,
            "sha256": hashlib.sha256(bits.tobytes()).hexdigest(),
        }
    path = folder / "mirror.json"
    path.write_text(json.dumps(mirror | changes))
    return path


def packet_with_lost_history(folder: Path) -> tuple[Path, PacketBuilder, np.ndarray, np.ndarray]:
    """Token 2 was written over with token 3, in storage and in the computation alike."""
    q, k, v = random_values(4, tokens=9)
    stored_k, stored_v = k.copy(), v.copy()
    stored_k[:, 2], stored_v[:, 2] = k[:, 3], v[:, 3]
    builder = values_packet(q, stored_k, stored_v)
    return builder.write(folder), builder, k, v


def test_mirror_finds_the_lost_history_and_changes_nothing_else(tmp_path: Path) -> None:
    path, builder, k, v = packet_with_lost_history(tmp_path / "packet")
    mirror = write_mirror(tmp_path / "mirror", builder, k, v)
    alone, found = analyze(path), analyze(path, mirror)
    assert (found.exit_code, found.analysis.status) == (0, "analyzed")
    assert found.analysis.additions is not None
    check = found.analysis.additions.incoming_mirror
    assert check is not None
    assert "added by CKE" in check.label
    for part in (check.stored_keys, check.stored_values):
        assert part.first_mismatched_token == 2
        assert part.mismatched_tokens == 1
        assert part.compared_native_elements == 72
        assert part.mismatched_native_elements > 0
    assert check.mirror_sha256 == hashlib.sha256(mirror.read_bytes()).hexdigest()
    assert alone.analysis.original_query_reference == found.analysis.original_query_reference


def test_mirror_of_a_part_compares_that_part(tmp_path: Path) -> None:
    path, builder, k, v = packet_with_lost_history(tmp_path / "packet")
    mirror = write_mirror(tmp_path / "mirror", builder, k[:, 3:7], v[:, 3:7], start=3)
    additions = analyze(path, mirror).analysis.additions
    assert additions is not None
    assert additions.incoming_mirror is not None
    assert (additions.incoming_mirror.token_start, additions.incoming_mirror.token_end) == (3, 7)
    assert additions.incoming_mirror.stored_keys.mismatched_native_elements == 0
    assert additions.incoming_mirror.stored_keys.first_mismatched_token is None


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"requestID": 42}, "$.requestID: expected request 41, got 42"),
        ({"modelLayerIndex": 4}, "$.modelLayerIndex: expected layer 5, got 4"),
        ({"tokenEnd": 4}, "$.tokenEnd: expected a range within [0, 3), got [0, 4)"),
        ({"tokenStart": 3}, "$.tokenEnd: expected a range within [0, 3), got [3, 3)"),
        ({"tokenStart": 1}, "$.keys: expected bfloat16 [1, 2, 2, 4], got bfloat16 [1, 2, 3, 4]"),
    ],
)
def test_mirror_of_another_request_is_refused(
    changes: dict[str, Any], place: str, tmp_path: Path
) -> None:
    builder = example()
    _, k, v = random_values()
    mirror = write_mirror(tmp_path / "mirror", builder, k, v, **changes)
    text = refusal_text(analyze(builder.write(tmp_path / "packet"), mirror))
    assert text == f"CKE846: {place}"


def test_mirror_of_another_identity_is_refused(tmp_path: Path) -> None:
    builder = example()
    _, k, v = random_values()
    identity = builder.packet["identity"] | {"modelID": "other"}
    mirror = write_mirror(tmp_path / "mirror", builder, k, v, identity=identity)
    text = refusal_text(analyze(builder.write(tmp_path / "packet"), mirror))
    assert text == "CKE846: $.identity: expected the identity of the packet, got another"


@pytest.mark.parametrize(
    "fault", ["missing", "extra key", "flipped bit", "link outside", "strides"]
)
def test_hostile_mirror_is_refused(fault: str, tmp_path: Path) -> None:
    builder = example()
    _, k, v = random_values()
    mirror = write_mirror(tmp_path / "mirror", builder, k, v)
    keys = tmp_path / "mirror/keys.bin"
    document = json.loads(mirror.read_text())
    match fault:
        case "missing":
            mirror = tmp_path / "none.json"
        case "extra key":
            mirror.write_text(json.dumps(document | {"trusted": True}))
        case "flipped bit":
            keys.write_bytes(bytes([keys.read_bytes()[0] ^ 1]) + keys.read_bytes()[1:])
        case "link outside":
            keys.rename(tmp_path / "keys.bin")
            keys.symlink_to(tmp_path / "keys.bin")
        case "strides":
            document["keys"]["packedStrides"] = [1, 1, 1, 1]
            mirror.write_text(json.dumps(document))
    refusal_text(analyze(builder.write(tmp_path / "packet"), mirror))
