"""The header of a GGUF file is believed only where it agrees with the file."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cke.errors import CkeError, MissingInputError
from cke.runtime.weights import open_model
from cke.runtime.weights.gguf_header import read_array, read_header
from tests.runtime.test_weights_safetensors import mutated
from tests.runtime.weights_files import (
    ARCHITECTURE,
    gguf_bytes,
    gguf_pair,
    gguf_tensor,
    gguf_text,
    sound_gguf,
    write_gguf,
)

HELP = "\n  help: the file is damaged or not GGUF: fetch it again"
U32 = struct.Struct("<I").pack
HUGE = 1 << 62


def array_of(kind: int, count: int, raw: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + raw


LIES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "expected a GGUF header of at least 24 bytes, got 0 bytes"),
    "other magic": (b"GGML" + bytes(20), "expected the magic `GGUF`, got `47 47 4d 4c`"),
    "version 1": (gguf_bytes([], [], version=1), "expected GGUF version 2 or 3, got 1"),
    "big-endian": (
        gguf_bytes([], [], version=3 << 24),
        "expected GGUF version 2 or 3, got 50331648 (a big-endian file)",
    ),
    "count of metadata": (
        gguf_bytes([ARCHITECTURE], [], counts=(0, HUGE)),
        f"expected at most 5 metadata pairs in a file of this size, got {HUGE}",
    ),
    "count of tensors": (
        gguf_bytes([ARCHITECTURE], [], counts=(HUGE, 1)),
        f"expected at most 3 tensors in a file of this size, got {HUGE}",
    ),
    "length of a key": (
        gguf_bytes([struct.pack("<Q", HUGE) + bytes(40)], []),
        f"a metadata key at byte 32 expects at most 65536 bytes, got {HUGE}",
    ),
    "length of a string": (
        gguf_bytes([gguf_pair("a", 8, struct.pack("<Q", HUGE) + bytes(40))], []),
        f"`a` at byte 45 expects at most 16777216 bytes, got {HUGE}",
    ),
    "string past the end": (
        gguf_bytes([gguf_pair("a", 8, struct.pack("<Q", 99))], []),
        "`a` at byte 45 expects 99 bytes, got 19: the file is cut short or lies about a length",
    ),
    "key that is not UTF-8": (
        gguf_bytes([gguf_pair(b"\xff", 4, U32(1))], []),
        "a metadata key at byte 32 expects UTF-8, got other bytes",
    ),
    "key that stands twice": (
        gguf_bytes([ARCHITECTURE, ARCHITECTURE], []),
        "the metadata key `general.architecture` stands twice",
    ),
    "unknown value type": (
        gguf_bytes([gguf_pair("a", 13, U32(1))], []),
        "`a` expects a value type of 0 to 12, got 13",
    ),
    "nested array": (
        gguf_bytes([gguf_pair("a", 9, array_of(9, 1, array_of(4, 1, U32(1))))], []),
        "`a` expects items of a flat type, got type 9",
    ),
    "count of numbers": (
        gguf_bytes([gguf_pair("a", 9, array_of(4, HUGE))], []),
        f"`a` expects at most 3 items, got {HUGE}",
    ),
    "count of strings": (
        gguf_bytes([gguf_pair("a", 9, array_of(8, HUGE))], []),
        f"`a` expects at most 1 items, got {HUGE}",
    ),
    "strings that run out": (
        gguf_bytes([gguf_pair("a", 9, array_of(8, 1500, bytes(8 * 1490) + b"\xff" * 80))], []),
        "item 1490 of `a` ends past the 12064 bytes of the file",
    ),
    "tensor that stands twice": (
        gguf_bytes([], [gguf_tensor("t", [1]), gguf_tensor("t", [1])], bytes(64)),
        "the tensor `t` stands twice",
    ),
    "tensor name that is not UTF-8": (
        gguf_bytes([], [gguf_tensor(b"\xc3", [1])], bytes(64)),
        "a tensor name at byte 32 expects UTF-8, got other bytes",
    ),
    "rank": (
        gguf_bytes([], [gguf_tensor("t", [1] * 5)], bytes(64)),
        "the rank of `t` expects 0 to 4, got 5",
    ),
    "tensor type": (
        gguf_bytes([], [gguf_tensor("t", [1], 4)], bytes(64)),
        "the type of `t` expects one of ggml's, got 4",
    ),
    "part of a block": (
        gguf_bytes([], [gguf_tensor("t", [33], 2)], bytes(64)),
        "`t` of sizes [33] expects rows of whole Q4_0 blocks",
    ),
    "sizes that overflow": (
        gguf_bytes([], [gguf_tensor("t", [1 << 32, 1 << 32])], bytes(64)),
        f"`t` of sizes [{1 << 32}, {1 << 32}] expects rows of whole F32 blocks",
    ),
    "offset out of step": (
        gguf_bytes([], [gguf_tensor("t", [1], 0, 7)], bytes(64)),
        "the offset of `t` expects a multiple of 32, got 7",
    ),
    "offset beyond the file": (
        gguf_bytes([], [gguf_tensor("t", [1], 0, 1 << 40)], bytes(64)),
        f"`t` expects 4 bytes at offset {1 << 40} of the data, got 64 bytes of data: the file is "
        "cut short or lies about an offset",
    ),
    "cut short": (
        sound_gguf()[:-20],
        "`b.weight` expects 18 bytes at offset 32 of the data, got 44 bytes of data: the file is "
        "cut short or lies about an offset",
    ),
    "overlap": (
        gguf_bytes([], [gguf_tensor("t", [16]), gguf_tensor("u", [4], 0, 32)], bytes(64)),
        "`u` overlaps the tensor before it: expected offset 64 or more, got 32",
    ),
    "alignment": (
        gguf_bytes([gguf_pair("general.alignment", 4, U32(24))], []),
        "`general.alignment` expects a power of two, got 24",
    ),
    "alignment of zero": (
        gguf_bytes([gguf_pair("general.alignment", 4, U32(0))], []),
        "`general.alignment` expects a power of two, got 0",
    ),
}


@pytest.mark.parametrize(("raw", "message"), LIES.values(), ids=LIES)
def test_a_header_that_lies_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises(CkeError) as caught:
        read_header(tmp_path / "x.gguf")
    assert str(caught.value) == f"x.gguf: error[CKE420]: {message}{HELP}"


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mutation_is_read_or_refused(data: Any, tmp_path: Path) -> None:
    raw = mutated(data, sound_gguf())
    (tmp_path / "x.gguf").write_bytes(raw)
    try:
        model = open_model(tmp_path / "x.gguf")
    except CkeError:
        return
    assert all(tensor.offset + tensor.size <= len(raw) for tensor in model.located.values())


def test_a_sound_header_gives_metadata_and_shapes_slowest_first(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(sound_gguf())
    model = open_model(tmp_path / "x.gguf")
    assert model.config == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": ["a", "b", "ć"],
        "llama.vocab_size": 3,
    }
    assert {
        key: (*tensor.info.shape, tensor.info.storage) for key, tensor in model.located.items()
    } == {
        "a.weight": (2, 4, "F32"),
        "b.weight": (1, 32, "Q4_0"),
    }


def test_long_arrays_stay_on_disk_until_asked_for(tmp_path: Path) -> None:
    words = "".join(chr(0x4E00 + index) for index in range(2000))
    raw = b"".join(map(gguf_text, words))
    pairs = [
        ARCHITECTURE,
        gguf_pair("tokenizer.ggml.tokens", 9, array_of(8, 2000, raw)),
        gguf_pair(
            "tokenizer.ggml.scores", 9, array_of(6, 2000, np.arange(2000, dtype="<f4").tobytes())
        ),
    ]
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(pairs, []))
    header = read_header(tmp_path / "x.gguf")
    assert header.metadata["tokenizer.ggml.tokens"].count == 2000
    assert read_array(header, header.metadata["tokenizer.ggml.tokens"]) == list(words)
    assert read_array(header, header.metadata["tokenizer.ggml.scores"]) == list(range(2000))
    assert open_model(tmp_path / "x.gguf").config["llama.vocab_size"] == 2000


def test_a_file_without_the_suffix_is_known_by_its_magic(tmp_path: Path) -> None:
    (tmp_path / "0a1b2c").write_bytes(sound_gguf())
    assert open_model(tmp_path / "0a1b2c").format == "gguf"


def part(number: int, count: int, total: int, pairs: tuple[bytes, ...] = ()) -> bytes:
    """A part of a split file with one tensor `t<number>`."""
    u16 = struct.Struct("<H").pack
    split = [
        gguf_pair("split.no", 2, u16(number)),
        gguf_pair("split.count", 2, u16(count)),
        gguf_pair("split.tensors.count", 5, struct.pack("<i", total)),
    ]
    return gguf_bytes([*pairs, *split], [gguf_tensor(f"t{number}", [2])], bytes(32))


def write_parts(folder: Path, *parts: bytes) -> Path:
    for index, raw in enumerate(parts):
        (folder / f"x-{index + 1:05d}-of-00002.gguf").write_bytes(raw)
    return folder / "x-00001-of-00002.gguf"


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    first = write_parts(tmp_path, part(0, 2, 2, (ARCHITECTURE,)), part(1, 2, 2))
    assert list(open_model(first).located) == ["t0", "t1"]
    assert list(open_model(tmp_path / "x-00002-of-00002.gguf").located) == ["t0", "t1"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [part(0, 2, 3, (ARCHITECTURE,)), part(1, 2, 3)],
            "x-00001-of-00002.gguf: error[CKE420]: `split.tensors.count` expects 3 tensors, got 2",
        ),
        (
            [part(0, 3, 2, (ARCHITECTURE,)), part(1, 3, 2)],
            "x-00001-of-00002.gguf: error[CKE420]: `split.count` expects 2, as the file name says, "
            "got 3",
        ),
        (
            [part(0, 2, 2, (ARCHITECTURE,)), part(0, 2, 2)],
            "x-00002-of-00002.gguf: error[CKE420]: `split.no` expects 1, as the file name says, "
            "got 0",
        ),
    ],
    ids=["count of tensors", "count of parts", "number of the part"],
)
def test_parts_that_lie_are_refused(parts: list[bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(CkeError) as caught:
        open_model(write_parts(tmp_path, *parts))
    assert str(caught.value) == message + HELP


def test_a_missing_part_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as caught:
        open_model(write_parts(tmp_path, part(0, 2, 2, (ARCHITECTURE,))))
    assert str(caught.value) == (
        "x-00001-of-00002.gguf: error[CKE405]: expected 2 parts, got none named "
        "`x-00002-of-00002.gguf`\n  help: put all the parts into one folder"
    )


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(part(0, 2, 2, (ARCHITECTURE,)))
    with pytest.raises(CkeError, match="is one part of several, expected a name like"):
        open_model(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "expected a string, got none"),
        ([gguf_pair("general.architecture", 4, U32(1))], "expected a string, got another type"),
    ],
)
def test_the_architecture_is_a_string(pairs: list[bytes], message: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(pairs, []))
    with pytest.raises(CkeError) as caught:
        open_model(tmp_path / "x.gguf")
    assert str(caught.value) == (
        f"x.gguf: `general.architecture`: error[CKE421]: {message}\n"
        "  help: the file was converted badly: convert or fetch it again"
    )


def test_our_reader_and_the_gguf_package_agree(tmp_path: Path) -> None:
    import gguf

    array = np.ones((3, 64), np.float32)
    path = write_gguf(
        tmp_path / "x.gguf",
        {"a": (array, "F32"), "b": (array, "Q4_1"), "c": (array[0], "BF16")},
        llama__block_count=(2, gguf.GGUFValueType.UINT32),
    )
    header = read_header(path)
    for theirs in gguf.GGUFReader(path).tensors:
        ours = header.tensors[theirs.name]
        assert (ours.offset, ours.size) == (theirs.data_offset, theirs.n_bytes)
        assert ours.info.shape == tuple(reversed([int(size) for size in theirs.shape]))
        assert ours.info.storage == theirs.tensor_type.name
