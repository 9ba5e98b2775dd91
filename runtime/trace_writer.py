"""Write a trace as it happens: captures stream to disk, the folder appears when it is whole.

The header of ``tensors.safetensors`` is reserved in front and filled in at the end, so that no
capture is held in memory and none is copied twice. A run that stops half-way leaves a folder
with another name, which no reader takes for a trace.
"""

import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.reading import canonical_sha256
from cke.schemas.trace import SCHEMA, VERSION, Body, Record, Trace

TENSORS = "tensors.safetensors"
DOCUMENT = "trace.json"
PARTIAL = ".partial"
SAFETENSORS_DTYPES = {
    "fp32": "F32",
    "fp16": "F16",
    "bf16": "BF16",
    "fp64": "F64",
    "i32": "I32",
    "bool": "BOOL",
}
_ROW = 256
Content = tuple[str | None, str, tuple[int, ...]]
Given = tuple[tuple[Record, NDArray[Any]], ...]
Mark = tuple[int, int, int]
"""How many records and tensors there are, and where the data ends."""


class TraceWriter:
    """A sink that writes a trace to `out`; `expected` is the number of captures to come.

    Raises CkeError when `out` exists: a trace is never written over another.
    """

    def __init__(self, out: Path, expected: int = 4096) -> None:
        check_free(out)
        self.out = out
        self.partial = out.with_name(out.name + PARTIAL)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        self.records: list[Record] = []
        self._reserved = 8 + _ROW * (expected + 1)
        self._entries: dict[str, Any] = {}
        self._keys: dict[Content, str] = {}
        self._seen: set[str] = set()
        self._offset = 0
        self._file: BinaryIO = (self.partial / TENSORS).open("wb")
        self._file.seek(self._reserved)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if self.partial.exists():
            shutil.rmtree(self.partial)

    def add(self, record: Record, array: NDArray[np.generic]) -> None:
        """Append the capture's bytes and keep its record, now with the path of its tensor.

        Bytes that an earlier capture has already are not written again.
        """
        name = tensor_key(record)
        assert name not in self._seen, f"`{name}` is captured twice"
        self._seen.add(name)
        content = (record.sha256, record.dtype, record.shape)
        key = self._keys.get(content)
        if key is None:
            key = self._keys[content] = name
            self._append(key, record, array)
        self.records.append(msgspec.structs.replace(record, tensor_path=f"{TENSORS}#{key}"))

    def _append(self, key: str, record: Record, array: NDArray[np.generic]) -> None:
        data = np.ascontiguousarray(array)
        self._file.write(data.view(np.uint8).data if data.size else b"")
        end = self._offset + data.nbytes
        self._entries[key] = {
            "dtype": SAFETENSORS_DTYPES[record.dtype],
            "shape": list(record.shape),
            "data_offsets": [self._offset, end],
        }
        self._offset = end

    def note(self, record: Record) -> None:
        """Keep a record without its tensor: a summary."""
        if record.level != "summary" or record.tensor_path is not None:
            record = msgspec.structs.replace(record, tensor_path=None, level="summary")
        self.records.append(record)

    def mark(self) -> Mark:
        """Return a place to rewind to."""
        return len(self.records), len(self._entries), self._offset

    def rewind(self, mark: Mark) -> None:
        """Drop every capture that came after the mark: the run that gave it is not evidence."""
        records, entries, self._offset = mark
        self._seen -= {tensor_key(record) for record in self.records[records:]}
        del self.records[records:]
        dropped = set(list(self._entries)[entries:])
        self._entries = {key: item for key, item in self._entries.items() if key not in dropped}
        self._keys = {content: key for content, key in self._keys.items() if key not in dropped}
        self._file.seek(self._reserved + self._offset)
        self._file.truncate()

    def move(self, out: Path) -> None:
        """Give the trace another name while it is written."""
        partial = out.with_name(out.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        self.partial.rename(partial)
        self.out, self.partial = out, partial

    def close(self, body: Body, inputs: Given = ()) -> Trace:
        """Write the header and the document, sync, and give the folder its name.

        `inputs` are tensors that the run was given, which the trace keeps as such.
        """
        given = []
        for record, array in inputs:
            key = f"inputs/{record.checkpoint_id}"
            self._append(key, record, array)
            given.append(msgspec.structs.replace(record, tensor_path=f"{TENSORS}#{key}"))
        body = msgspec.structs.replace(body, records=tuple(self.records))
        if given:
            body = msgspec.structs.replace(body, inputs=tuple(given))
        trace = Trace(
            schema=SCHEMA,
            version=VERSION,
            body=body,
            body_sha256=body_sha256(body),
            volatile={"written_unix": int(time.time())},
        )
        self._write_header()
        with (self.partial / DOCUMENT).open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(trace), indent=1))
            file.flush()
            os.fsync(file.fileno())
        self.partial.rename(self.out)
        return trace

    def _write_header(self) -> None:
        header = json.dumps(self._entries, separators=(",", ":")).encode()
        room = self._reserved - 8
        if len(header) > room:
            self._move_data(8 + len(header))
            room = len(header)
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little"))
        self._file.write(header.ljust(room))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _move_data(self, start: int) -> None:
        """Rewrite the data further back, for a header that outgrew its reserve."""
        self._file.close()
        old = self.partial / TENSORS
        new = self.partial / f"{TENSORS}.moved"
        with old.open("rb") as source, new.open("wb") as target:
            source.seek(self._reserved)
            target.seek(start)
            shutil.copyfileobj(source, target, 1 << 20)
        new.replace(old)
        self._file = old.open("r+b")


def tensor_key(record: Record) -> str:
    """Return the key of a capture in the tensor file."""
    key = f"{record.segment}/{record.checkpoint_id}"
    return key if record.role is None else f"{key}/{record.role}"


def check_free(out: Path) -> None:
    """Raise CkeError (CKE702) when the folder exists."""
    if out.exists():
        raise CkeError(
            Diagnostic(
                code="CKE702",
                file=out.name,
                message="expected a folder that does not exist yet, got one that does",
                notes=(Note("remove it, or choose another folder with --out", label="help"),),
            )
        )


def body_sha256(body: Body) -> str:
    """Return the sha256 of the body's canonical JSON (RFC 8785)."""
    return canonical_sha256(body)
