"""Read the header of a safetensors file and check every claim of it against the file.

Format: https://github.com/huggingface/safetensors (u64 length, JSON, data). Nothing is allocated
for a tensor before its offsets, dtype and shape agree with each other and with the file's size.
"""

import os
from pathlib import Path
from typing import Any

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor, Stamp, stamp_of
from cke.schemas.model_source import TensorInfo
from cke.schemas.reading import Limits, open_regular, parse_json, shown

MAX_HEADER = 100 << 20
MAX_RANK = 8
LIMITS = Limits(max_bytes=MAX_HEADER, max_depth=4, max_keys=1 << 22)
ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "U16": 2, "U32": 4, "U64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
HELP = "the file is damaged or not safetensors: fetch it again"


def read_header(file: Path) -> dict[str, LocatedTensor]:
    """Return the tensors of `file` by key; raises CkeError (CKE410) at the first lie."""
    with open_regular(file) as stream:
        stamp = stamp_of(os.fstat(stream.fileno()))
        size = stamp[0]
        if size < 8:
            raise _bad(file, None, f"expected the 8 bytes of a header length, got {size} bytes")
        length = int.from_bytes(stream.read(8), "little")
        room = min(size - 8, MAX_HEADER)
        if length > room:
            raise _bad(file, None, f"expected a header of at most {room} bytes, got {length}")
        raw = stream.read(length)
    entries = _parsed(file, raw)
    tensors = {
        key: _located(file, key, entry, (8 + length, size - 8 - length), stamp)
        for key, entry in entries.items()
        if key != "__metadata__"
    }
    _check_cover(file, tensors, 8 + length, size)
    return tensors


def _parsed(file: Path, raw: bytes) -> dict[str, Any]:
    try:
        entries = parse_json(raw, file, LIMITS)
    except CkeError as error:
        first = error.diagnostics[0]
        raise _bad(file, first.path, f"in the header: {first.message}") from None
    if not isinstance(entries, dict):
        raise _bad(file, "$", "expected a JSON object as header")
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(file, "$.__metadata__", "expected an object of strings")
    return entries


def _located(
    file: Path, key: str, entry: Any, data: tuple[int, int], stamp: Stamp
) -> LocatedTensor:
    path = shown(key)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(file, path, "expected exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        known = ", ".join(ITEM_SIZES)
        raise _bad(file, path, f"expected a dtype of {known}, got `{shown(str(dtype))}`")
    if not _whole(shape) or len(shape) > MAX_RANK:
        raise _bad(file, path, f"expected a shape of at most {MAX_RANK} whole numbers")
    if not _whole(offsets) or len(offsets) != 2:
        raise _bad(file, path, "expected two whole numbers as data_offsets")
    start, room = data
    begin, end = offsets
    if not begin <= end <= room:
        raise _bad(
            file, path, f"expected data_offsets within {room} bytes of data, got {begin} to {end}"
        )
    expected = ITEM_SIZES[dtype]
    for item in shape:
        expected *= item
    if expected != end - begin:
        raise _bad(
            file, path, f"shape {shape} of {dtype} expects {expected} bytes, got {end - begin}"
        )
    return LocatedTensor(
        TensorInfo(tuple(shape), dtype), file, start + begin, end - begin, key, stamp
    )


def _check_cover(file: Path, tensors: dict[str, LocatedTensor], start: int, size: int) -> None:
    """Check that the tensors cover the data without a gap, an overlap or a rest."""
    at = start
    for key, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)):
        if tensor.offset != at:
            what = "overlaps the tensor before it" if tensor.offset < at else "leaves a gap"
            raise _bad(
                file,
                shown(key),
                f"its data {what}: expected it at byte {at}, got {tensor.offset}",
            )
        at += tensor.size
    if at != size:
        raise _bad(file, None, f"expected the data to end at byte {at}, got a file of {size} bytes")


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(item) is int and 0 <= item < 1 << 48 for item in values
    )


def _bad(file: Path, path: str | None, message: str) -> CkeError:
    note = Note(HELP, label="help")
    return CkeError(
        Diagnostic(code="CKE410", file=file.name, path=path, message=message, notes=(note,))
    )
