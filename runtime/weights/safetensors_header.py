"""Read the header of a safetensors file and check every claim of it against the file.

Format: https://github.com/huggingface/safetensors (u64 length, JSON, data). Nothing is allocated
for a tensor before its offsets, dtype and shape agree with each other and with the file's size.
"""

import json
from pathlib import Path
from typing import Any

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.model_source import TensorInfo

MAX_HEADER = 100 << 20
ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "U16": 2, "U32": 4, "U64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


def read_header(file: Path) -> dict[str, LocatedTensor]:
    """Return the tensors of `file` by key; raises CkeError (CKE410) at the first lie."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise _bad(file, None, f"expected a header within {size} bytes, got {length} bytes")
        raw = stream.read(length)
    entries = _parsed(file, raw)
    tensors = {
        key: _located(file, key, entry, 8 + length, size - 8 - length)
        for key, entry in entries.items()
        if key != "__metadata__"
    }
    _check_disjoint(file, tensors)
    return tensors


def _parsed(file: Path, raw: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(raw, object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise _bad(file, None, "expected a JSON header, got other bytes") from None
    except _DuplicateError as error:
        raise _bad(file, error.key, "the key stands twice in the header") from None
    if not isinstance(entries, dict):
        raise _bad(file, None, "expected a JSON object as header")
    return entries


class _DuplicateError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateError(key)
        result[key] = value
    return result


def _located(file: Path, key: str, entry: Any, start: int, room: int) -> LocatedTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(file, key, "expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_SIZES:
        raise _bad(file, key, f"unknown dtype `{dtype}`")
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise _bad(file, key, "expected whole numbers in shape and data_offsets")
    begin, end = offsets
    if not begin <= end <= room:
        raise _bad(file, key, f"data_offsets {offsets} leave the {room} bytes of data")
    expected = ITEM_SIZES[dtype]
    for item in shape:
        expected *= item
    if expected != end - begin:
        raise _bad(
            file, key, f"shape {shape} of {dtype} expects {expected} bytes, got {end - begin}"
        )
    return LocatedTensor(TensorInfo(tuple(shape), dtype), file, start + begin, end - begin)


def _check_disjoint(file: Path, tensors: dict[str, LocatedTensor]) -> None:
    end = 0
    for key, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)):
        if tensor.size and tensor.offset < end:
            raise _bad(file, key, "its data overlaps the tensor before it")
        end = max(end, tensor.offset + tensor.size)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(item) is int and 0 <= item < 1 << 48 for item in values
    )


def _bad(file: Path, key: str | None, message: str) -> CkeError:
    return CkeError(
        Diagnostic(
            code="CKE410",
            file=file.name,
            path=key,
            message=message,
            notes=(Note("the file is damaged or not safetensors: fetch it again", label="help"),),
        )
    )
