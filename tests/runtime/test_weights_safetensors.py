"""The header of a safetensors file is believed only where it agrees with the file."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cke.errors import CkeError
from cke.runtime.weights.safetensors_header import read_header
from tests.runtime.weights_files import entry, safetensors_bytes, sound_safetensors
from tests.schemas.hostile import HOSTILE_DOCUMENTS

HELP = "\n  help: the file is damaged or not safetensors: fetch it again"
KNOWN = "F64, F32, F16, BF16, I64, I32, I16, I8, U8, U16, U32, U64, BOOL, F8_E4M3, F8_E5M2, F8_E8M0"

LIES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "error[CKE410]: expected the 8 bytes of a header length, got 0 bytes"),
    "length beyond the file": (
        struct.pack("<Q", 1 << 60) + b"{}",
        f"error[CKE410]: expected a header of at most 2 bytes, got {1 << 60}",
    ),
    "not an object": (
        safetensors_bytes([]),
        "`$`: error[CKE410]: expected a JSON object as header",
    ),
    "metadata of numbers": (
        safetensors_bytes({"__metadata__": {"a": 1}}),
        "`$.__metadata__`: error[CKE410]: expected an object of strings",
    ),
    "missing offsets": (
        safetensors_bytes({"a": {"dtype": "F32", "shape": [1]}}),
        "`a`: error[CKE410]: expected exactly dtype, shape and data_offsets",
    ),
    "unknown dtype": (
        safetensors_bytes({"a": entry(0, 4, [1], "F31")}, bytes(4)),
        f"`a`: error[CKE410]: expected a dtype of {KNOWN}, C64, got `F31`",
    ),
    "dtype of another type": (
        safetensors_bytes({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}),
        f"`a`: error[CKE410]: expected a dtype of {KNOWN}, C64, got `['F32']`",
    ),
    "boolean size": (
        safetensors_bytes({"a": entry(0, 4, [True])}, bytes(4)),
        "`a`: error[CKE410]: expected a shape of at most 8 whole numbers",
    ),
    "negative size": (
        safetensors_bytes({"a": entry(0, 4, [-1, -1])}, bytes(4)),
        "`a`: error[CKE410]: expected a shape of at most 8 whole numbers",
    ),
    "three offsets": (
        safetensors_bytes({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
        "`a`: error[CKE410]: expected two whole numbers as data_offsets",
    ),
    "cut short": (
        sound_safetensors()[:-1],
        "`b`: error[CKE410]: expected data_offsets within 23 bytes of data, got 16 to 24",
    ),
    "offsets backwards": (
        safetensors_bytes({"a": entry(4, 0, [1])}, bytes(4)),
        "`a`: error[CKE410]: expected data_offsets within 4 bytes of data, got 4 to 0",
    ),
    "shape that lies": (
        safetensors_bytes({"a": entry(0, 16, [2, 3])}, bytes(16)),
        "`a`: error[CKE410]: shape [2, 3] of F32 expects 24 bytes, got 16",
    ),
    "shape that overflows": (
        safetensors_bytes({"a": entry(0, 16, [1 << 40, 1 << 40])}, bytes(16)),
        f"`a`: error[CKE410]: shape [{1 << 40}, {1 << 40}] of F32 expects {1 << 82} bytes, got 16",
    ),
    "overlap": (
        safetensors_bytes({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
        "`b`: error[CKE410]: its data overlaps the tensor before it: expected it at byte 139, "
        "got 135",
    ),
    "gap": (
        safetensors_bytes({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, bytes(12)),
        "`b`: error[CKE410]: its data leaves a gap: expected it at byte 135, got 139",
    ),
    "rest": (
        safetensors_bytes({"a": entry(0, 4, [1])}, bytes(12)),
        "error[CKE410]: expected the data to end at byte 73, got a file of 81 bytes",
    ),
    "key of control characters": (
        safetensors_bytes({"\x1b[2J": {}}),
        r"`\x1b[2J`: error[CKE410]: expected exactly dtype, shape and data_offsets",
    ),
}


@pytest.mark.parametrize(("raw", "message"), LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(CkeError) as caught:
        read_header(tmp_path / "x.safetensors")
    assert str(caught.value) == f"x.safetensors: {message}{HELP}"


@pytest.mark.parametrize("name", sorted(HOSTILE_DOCUMENTS.keys() - {"integer beyond 2^53"}))
def test_a_hostile_header_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(HOSTILE_DOCUMENTS[name][0]))
    with pytest.raises(CkeError, match=r"^x\.safetensors: `\$.*`: error\[CKE410\]: in the header:"):
        read_header(tmp_path / "x.safetensors")


def test_a_sound_header_gives_shapes_storages_and_places(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(sound_safetensors())
    tensors = read_header(tmp_path / "x.safetensors")
    assert {key: (*tensor.info.shape, tensor.info.storage) for key, tensor in tensors.items()} == {
        "a": (2, 2, "F32"),
        "b": (4, "BF16"),
    }
    raw = sound_safetensors()
    assert raw[tensors["b"].offset :][:2] == bytes([16, 17])


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mutation_is_read_or_refused(data: Any, tmp_path: Path) -> None:
    raw = mutated(data, sound_safetensors())
    (tmp_path / "x.safetensors").write_bytes(raw)
    try:
        tensors = read_header(tmp_path / "x.safetensors")
    except CkeError:
        return
    assert all(tensor.offset + tensor.size <= len(raw) for tensor in tensors.values())


def mutated(data: Any, raw: bytes) -> bytes:
    """The bytes with a few places overwritten, removed or repeated."""
    found = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(found) - 1)))
        match data.draw(st.sampled_from(["set", "number", "cut", "remove", "insert"])):
            case "set":
                found[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "number":
                big = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1])
                found[at : at + 8] = struct.pack("<Q", data.draw(big))
            case "cut":
                del found[at:]
            case "remove":
                del found[at : at + data.draw(st.integers(1, 16))]
            case _:
                found[at:at] = found[at : at + data.draw(st.integers(1, 16))]
    return bytes(found)
