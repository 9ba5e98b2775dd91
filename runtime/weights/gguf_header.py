"""Read the header of a GGUF file: metadata, tensor names, shapes and places.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. Long arrays
(the vocabulary) stay on disk until asked for. Every count, length and offset is checked against
the bytes that are left before anything is allocated for it.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

import msgspec
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.model_source import TensorInfo

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
LONG = 1024
MAX_RANK = 4
MAX_NAME = 1 << 16


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

    def text(self, what: str) -> str:
        length = self.number("Q", what)
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise bad(self.file, f"{what} is not UTF-8") from None


def read_header(file: Path) -> GgufHeader:
    """Return the checked header of `file`; raises CkeError (CKE420) at the first lie."""
    if file.stat().st_size < 24:
        raise bad(file, f"expected a GGUF header, got {file.stat().st_size} bytes")
    with file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(file, data)
    if cursor.take(4, "the magic") != MAGIC:
        raise bad(file, "expected the magic `GGUF`, got other bytes")
    version = cursor.number("I", "the version")
    if version not in (2, 3):
        raise bad(file, f"expected GGUF version 2 or 3, got {version}")
    tensor_count = cursor.number("Q", "the tensor count")
    pair_count = cursor.number("Q", "the metadata count")
    left = len(data) - cursor.at
    if pair_count > left // 13 or tensor_count > left // 24:
        raise bad(
            file, f"{pair_count} metadata pairs and {tensor_count} tensors do not fit {left} bytes"
        )
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise bad(file, f"the metadata key `{key}` stands twice")
        metadata[key] = _value(cursor, cursor.number("I", f"the type of `{key}`"), key)
    return GgufHeader(file, metadata, _tensors(cursor, tensor_count, metadata))


def read_array(header: GgufHeader, array: LongArray) -> list[Any]:
    """Return the items of a long array."""
    with header.file.open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(header.file, data, array.offset)
    if array.kind == STRING:
        return [cursor.text("an array item") for _ in range(array.count)]
    code = SCALARS[array.kind]
    raw = cursor.take(struct.calcsize(code) * array.count, "an array")
    return list(struct.unpack(f"<{array.count}{code}", raw))


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind in SCALARS:
        return cursor.number(SCALARS[kind], f"`{key}`")
    if kind == STRING:
        return cursor.text(f"`{key}`")
    if kind != ARRAY:
        raise bad(cursor.file, f"`{key}` has the unknown type {kind}")
    inner = cursor.number("I", f"the item type of `{key}`")
    count = cursor.number("Q", f"the length of `{key}`")
    if inner not in SCALARS and inner != STRING:
        raise bad(cursor.file, f"`{key}` is an array of type {inner}: nested or unknown")
    width = 8 if inner == STRING else struct.calcsize(SCALARS[inner])
    if count > (len(cursor.data) - cursor.at) // width:
        raise bad(cursor.file, f"`{key}` claims {count} items, more than the file holds")
    return _array(cursor, inner, count, key)


def _array(cursor: _Cursor, kind: int, count: int, key: str) -> Any:
    start = cursor.at
    what = f"an item of `{key}`"
    if kind != STRING:
        code = SCALARS[kind]
        raw = cursor.take(struct.calcsize(code) * count, what)
        if count > LONG:
            return LongArray(kind, count, start)
        return list(struct.unpack(f"<{count}{code}", raw))
    if count <= LONG:
        return [cursor.text(what) for _ in range(count)]
    size, data, at = len(cursor.data), cursor.data, cursor.at
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(count):
        if at + 8 > size:
            break
        at += 8 + unpack(data, at)[0]
    if at > size:
        raise bad(cursor.file, f"`{key}` runs past the end of the file")
    cursor.at = at
    return LongArray(kind, count, start)


def _tensors(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, LocatedTensor]:
    rows: dict[str, tuple[TensorInfo, int, int]] = {}
    for _ in range(count):
        name = cursor.text("a tensor name")
        if name in rows or len(name) > MAX_NAME:
            raise bad(cursor.file, f"the tensor `{name[:80]}` stands twice or has no usable name")
        rows[name] = _row(cursor, name)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise bad(cursor.file, f"`general.alignment` expects a power of two, got {alignment}")
    start = -(-cursor.at // alignment) * alignment
    return _placed(cursor, rows, start, alignment)


def _row(cursor: _Cursor, name: str) -> tuple[TensorInfo, int, int]:
    rank = cursor.number("I", f"the rank of `{name}`")
    if not 0 <= rank <= MAX_RANK:
        raise bad(cursor.file, f"the rank of `{name}` expects 0 to {MAX_RANK}, got {rank}")
    sizes = [cursor.number("Q", f"a size of `{name}`") for _ in range(rank)]
    kind = cursor.number("I", f"the type of `{name}`")
    offset = cursor.number("Q", f"the offset of `{name}`")
    try:
        storage = GGMLQuantizationType(kind)
    except ValueError:
        raise bad(cursor.file, f"`{name}` has the unknown type {kind}") from None
    elements = 1
    for size in sizes:
        elements *= size
    block, width = GGML_QUANT_SIZES[storage]
    if elements > 1 << 48 or (sizes and sizes[0] % block):
        raise bad(cursor.file, f"`{name}` of {sizes} is no whole number of {storage.name} blocks")
    info = TensorInfo(tuple(reversed(sizes)), storage.name)
    return info, offset, elements // block * width


def _placed(
    cursor: _Cursor, rows: dict[str, tuple[TensorInfo, int, int]], start: int, alignment: int
) -> dict[str, LocatedTensor]:
    room = len(cursor.data) - start
    tensors: dict[str, LocatedTensor] = {}
    end = 0
    for name, (info, offset, size) in sorted(rows.items(), key=lambda item: item[1][1]):
        if offset % alignment or offset + size > room:
            raise bad(
                cursor.file,
                f"`{name}` expects {size} bytes at data offset {offset}, got {max(room, 0)} bytes "
                "of data: the file is cut short or lies about an offset",
            )
        if size and offset < end:
            raise bad(cursor.file, f"the data of `{name}` overlaps the tensor before it")
        end = offset + size
        tensors[name] = LocatedTensor(info, cursor.file, start + offset, size)
    return tensors


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
