"""Read the header of a GGUF file: metadata, tensor names, shapes and places.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. Long arrays
(the vocabulary) stay on disk until asked for. Every count, length and offset is checked against
the bytes that are left before anything is allocated for it.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor, Stamp, stamp_of
from cke.schemas.model_source import TensorInfo
from cke.schemas.reading import open_regular, shown

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
LONG = 1024
_KINDS = frozenset(int(kind) for kind in GGMLQuantizationType) & frozenset(
    map(int, GGML_QUANT_SIZES)
)
MAX_RANK = 4
MAX_NAME = 1 << 16
MAX_TEXT = 1 << 24
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20


class LongArray(msgspec.Struct, frozen=True):
    """An array of the metadata that was not read: `count` items of type `kind` at `offset`."""

    kind: int
    count: int
    offset: int


class GgufHeader(msgspec.Struct, frozen=True):
    """Metadata by key, with long arrays left on disk, and tensors by name."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, LocatedTensor]


class _Cursor:
    """A position in the file; every read is checked against the end."""

    def __init__(self, file: Path, data: mmap.mmap, at: int = 0) -> None:
        self.file = file
        self.data = data
        self.at = at

    def take(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.at:
            raise bad(
                self.file,
                f"{what} at byte {self.at} expects {size} bytes, got {len(self.data) - self.at}: "
                "the file is cut short or lies about a length",
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize(code), what))[0]

    def text(self, what: str, limit: int = MAX_TEXT) -> str:
        length = self.number("Q", what)
        if length > limit:
            raise bad(
                self.file,
                f"{what} at byte {self.at} expects at most {limit} bytes, got {length}",
            )
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            at = self.at - length
            raise bad(self.file, f"{what} at byte {at} expects UTF-8, got other bytes") from None


def read_header(file: Path) -> GgufHeader:
    """Return the checked header of `file`; raises CkeError (CKE420) at the first lie."""
    data, stamp = _mapped(file)
    cursor = _Cursor(file, data)
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        raise bad(file, f"expected the magic `GGUF`, got `{magic.hex(' ')}`")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        swapped = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
        raise bad(file, f"expected GGUF version 2 or 3, got {version}{swapped}")
    tensor_count = cursor.number("Q", "the tensor count")
    pair_count = cursor.number("Q", "the metadata count")
    left = len(data) - cursor.at
    _check_count(file, "metadata pairs", pair_count, min(left // 13, MAX_PAIRS))
    _check_count(file, "tensors", tensor_count, min(left // 24, MAX_TENSORS))
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text("a metadata key", MAX_NAME)
        if key in metadata:
            raise bad(file, f"the metadata key `{shown(key)}` stands twice")
        metadata[key] = _value(cursor, cursor.number("I", f"the type of `{shown(key)}`"), key)
    return GgufHeader(file, metadata, _tensors(cursor, tensor_count, metadata, stamp))


def _mapped(file: Path) -> tuple[mmap.mmap, Stamp]:
    with open_regular(file) as stream:
        stamp = stamp_of(os.fstat(stream.fileno()))
        if stamp[0] < 24:
            raise bad(file, f"expected a GGUF header of at least 24 bytes, got {stamp[0]} bytes")
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), stamp


def _check_count(file: Path, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise bad(file, f"expected at most {limit} {what} in a file of this size, got {count}")


def read_array(header: GgufHeader, array: LongArray) -> list[Any]:
    """Return the items of a long array."""
    data, _ = _mapped(header.file)
    cursor = _Cursor(header.file, data, array.offset)
    if array.kind == STRING:
        return [cursor.text("an array item") for _ in range(array.count)]
    code = SCALARS[array.kind]
    raw = cursor.take(struct.calcsize(code) * array.count, "an array")
    return list(struct.unpack(f"<{array.count}{code}", raw))


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    name = f"`{shown(key)}`"
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], name)
    if kind == STRING:
        return cursor.text(name)
    if kind != ARRAY:
        raise bad(cursor.file, f"{name} expects a value type of 0 to 12, got {kind}")
    inner = cursor.number("I", f"the item type of {name}")
    count = cursor.number("Q", f"the length of {name}")
    if inner not in SCALARS and inner != STRING:
        raise bad(cursor.file, f"{name} expects items of a flat type, got type {inner}")
    width = 8 if inner == STRING else struct.calcsize(SCALARS[inner])
    room = (len(cursor.data) - cursor.at) // width
    if count > room:
        raise bad(cursor.file, f"{name} expects at most {room} items, got {count}")
    return _array(cursor, inner, count, name)


def _array(cursor: _Cursor, kind: int, count: int, name: str) -> Any:
    start = cursor.at
    what = f"an item of {name}"
    if kind != STRING:
        code = SCALARS[kind]
        size = struct.calcsize(code) * count
        if count > LONG:
            cursor.at += size
            return LongArray(kind, count, start)
        raw = cursor.take(size, what)
        return list(struct.unpack(f"<{count}{code}", raw))
    if count <= LONG:
        return [cursor.text(what) for _ in range(count)]
    _skip_texts(cursor, count, name)
    return LongArray(kind, count, start)


def _skip_texts(cursor: _Cursor, count: int, name: str) -> None:
    size, data, at = len(cursor.data), cursor.data, cursor.at
    unpack = struct.Struct("<Q").unpack_from
    for index in range(count):
        if at + 8 <= size:
            at += 8 + unpack(data, at)[0]
        else:
            at = size + 1
        if at > size:
            raise bad(cursor.file, f"item {index} of {name} ends past the {size} bytes of the file")
    cursor.at = at


def _tensors(
    cursor: _Cursor, count: int, metadata: dict[str, Any], stamp: Stamp
) -> dict[str, LocatedTensor]:
    rows: dict[str, tuple[TensorInfo, int, int]] = {}
    for _ in range(count):
        name = cursor.text("a tensor name", MAX_NAME)
        if name in rows:
            raise bad(cursor.file, f"the tensor `{shown(name)}` stands twice")
        rows[name] = _row(cursor, f"`{shown(name)}`")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        got = shown(str(alignment))
        raise bad(cursor.file, f"`general.alignment` expects a power of two, got {got}")
    start = -(-cursor.at // alignment) * alignment
    return _placed(cursor, rows, (start, alignment), stamp)


def _row(cursor: _Cursor, name: str) -> tuple[TensorInfo, int, int]:
    """A tensor's header, its offset in the data and its size in bytes."""
    rank = cursor.number("I", f"the rank of {name}")
    if rank > MAX_RANK:
        raise bad(cursor.file, f"the rank of {name} expects 0 to {MAX_RANK}, got {rank}")
    sizes = [cursor.number("Q", f"a size of {name}") for _ in range(rank)]
    kind = cursor.number("I", f"the type of {name}")
    offset = cursor.number("Q", f"the offset of {name}")
    if kind not in _KINDS:
        raise bad(cursor.file, f"the type of {name} expects one of ggml's, got {kind}")
    storage = GGMLQuantizationType(kind)
    elements = 1
    for size in sizes:
        elements *= size
    block, width = GGML_QUANT_SIZES[storage]
    if elements > 1 << 48 or (sizes[0] if sizes else 1) % block:
        raise bad(
            cursor.file, f"{name} of sizes {sizes} expects rows of whole {storage.name} blocks"
        )
    info = TensorInfo(tuple(reversed(sizes)), storage.name)
    return info, offset, elements // block * width


def _placed(
    cursor: _Cursor,
    rows: dict[str, tuple[TensorInfo, int, int]],
    data: tuple[int, int],
    stamp: Stamp,
) -> dict[str, LocatedTensor]:
    """The tensors at their places; `data` is the start of the data and its alignment."""
    start, alignment = data
    room = max(0, len(cursor.data) - start)
    tensors: dict[str, LocatedTensor] = {}
    end = 0
    for key, (info, offset, size) in sorted(rows.items(), key=lambda item: item[1][1:]):
        name = f"`{shown(key)}`"
        if offset % alignment:
            raise bad(
                cursor.file, f"the offset of {name} expects a multiple of {alignment}, got {offset}"
            )
        if offset + size > room:
            raise bad(
                cursor.file,
                f"{name} expects {size} bytes at offset {offset} of the data, got {room} bytes of "
                "data: the file is cut short or lies about an offset",
            )
        if size and offset < end:
            raise bad(
                cursor.file,
                f"{name} overlaps the tensor before it: expected offset {end} or more, "
                f"got {offset}",
            )
        end = max(end, offset + size)
        tensors[key] = LocatedTensor(info, cursor.file, start + offset, size, key, stamp)
    return {key: tensors[key] for key in rows}


def bad(file: Path, message: str) -> CkeError:
    """Return the error of a GGUF file that cannot be trusted."""
    return CkeError(
        Diagnostic(
            code="CKE420",
            file=file.name,
            message=message,
            notes=(Note("the file is damaged or not GGUF: fetch it again", label="help"),),
        )
    )
