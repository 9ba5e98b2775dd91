"""Read a trace: every statement is checked against the files before a value is used.

Metadata comes first: the document, its hash, then the headers of the tensor files against the
records. Values are mapped, not loaded; a tensor's digest is checked when it is opened.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, MissingInputError, Note, RejectedError
from cke.runtime.trace_writer import DOCUMENT, PARTIAL, SAFETENSORS_DTYPES, body_sha256
from cke.runtime.weights.located import LocatedTensor
from cke.runtime.weights.safetensors_header import read_header
from cke.schemas.reading import read_json
from cke.schemas.trace import SCHEMA, VERSION, Body, Record, Trace

Array = NDArray[np.generic]
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
MAX_DOCUMENT = 256 << 20


class TraceFolder:
    """A trace that was checked; `array` gives the values of a record, without loading others."""

    def __init__(self, folder: Path, trace: Trace, places: dict[str, tuple[Path, int]]) -> None:
        self.folder = folder
        self.trace = trace
        self._places = places

    def array(self, record: Record, digest: Callable[[Array], str]) -> Array:
        """Return the mapped values of `record`; a digest that differs is CKE709."""
        assert record.tensor_path is not None, "the record keeps a summary only"
        file, offset = self._places[record.tensor_path]
        dtype = NUMPY_DTYPES[record.dtype]
        if 0 in record.shape:
            return np.zeros(record.shape, dtype)
        mapped: Array = np.memmap(file, dtype, "r", offset, record.shape)
        if digest(mapped) != record.sha256:
            raise digest_differs(self, record)
        return mapped

    def place(self, record: Record) -> tuple[Path, int]:
        """Return the file of the record's tensor and where its bytes start."""
        assert record.tensor_path is not None, "the record keeps a summary only"
        return self._places[record.tensor_path]


def placed_records(trace: Trace) -> Iterator[tuple[str, Record]]:
    """Yield every record of a trace with its JSON path: captures, then inputs."""
    body = trace.body
    groups = {"records": body.records, "inputs": given_inputs(body)}
    for name, records in groups.items():
        for index, record in enumerate(records):
            yield f"$.body.{name}[{index}]", record


def given_inputs(body: Body) -> tuple[Record, ...]:
    """Return what the run of a trace was given beside tokens."""
    return () if body.inputs is UNSET else body.inputs


def digest_differs(side: TraceFolder, record: Record) -> RejectedError:
    """Return the error of a tensor whose bytes are not those of its record."""
    path = next(path for path, item in placed_records(side.trace) if item == record)
    return _rejected(
        "CKE709",
        side.folder,
        f"{path}.sha256",
        f"expected the digest {record.sha256}, got other bytes in `{record.tensor_path}`",
    )


def read_trace(folder: Path) -> TraceFolder:
    """Return the trace in `folder`; raises RejectedError with the JSON path that is wrong."""
    document = folder / DOCUMENT
    if folder.name.endswith(PARTIAL) or not document.is_file():
        raise MissingInputError(
            Diagnostic(
                code="CKE703",
                file=folder.name,
                message=f"expected a trace folder with `{DOCUMENT}`, got none: a run that stopped "
                "half-way leaves no trace",
                notes=(Note("run the capture again", label="help"),),
            )
        )
    raw = read_json(document, max_bytes=MAX_DOCUMENT)
    trace = _typed(folder, raw)
    if (trace.schema, trace.version) != (SCHEMA, VERSION):
        raise _rejected(
            "CKE705",
            folder,
            "$.schema",
            f"expected `{SCHEMA}` version {VERSION}, got `{trace.schema}` version {trace.version}",
        )
    if body_sha256(trace.body) != trace.body_sha256:
        raise _rejected(
            "CKE706", folder, "$.body_sha256", "the body was changed after it was written"
        )
    return TraceFolder(folder, trace, _places(folder, trace))


def _typed(folder: Path, raw: Any) -> Trace:
    try:
        return msgspec.convert(raw, Trace)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise _rejected("CKE704", folder, path.rstrip("`") or "$", message.lower()) from None


def _places(folder: Path, trace: Trace) -> dict[str, tuple[Path, int]]:
    headers: dict[str, dict[str, LocatedTensor]] = {}
    places: dict[str, tuple[Path, int]] = {}
    for where, record in placed_records(trace):
        path = f"{where}.tensor_path"
        _check_level(folder, path, record)
        if record.tensor_path is None:
            continue
        name, _, key = record.tensor_path.partition("#")
        file = _inside(folder, name, path)
        if not key:
            places[record.tensor_path] = (file, 0)
            _check_size(folder, path, record, file.stat().st_size)
            continue
        if name not in headers:
            headers[name] = _header(folder, trace, file, path)
        found = headers[name].get(key)
        if found is None:
            raise _rejected("CKE707", folder, path, f"no tensor `{key}` in the file")
        _check_entry(folder, path, record, found)
        places[record.tensor_path] = (file, found.offset)
    return places


def _check_level(folder: Path, path: str, record: Record) -> None:
    """A record of the level `tensor` has its values and their digest, one of `summary` has none."""
    if (record.tensor_path is None) != (record.level == "summary"):
        got = "null" if record.tensor_path is None else "a path"
        raise _rejected(
            "CKE707", folder, path, f"a record of level `{record.level}` does not have {got} here"
        )
    if record.level == "tensor" and record.sha256 is None:
        path = path.replace("tensor_path", "sha256")
        raise _rejected("CKE707", folder, path, "expected the digest of the tensor, got null")


def _check_entry(folder: Path, path: str, record: Record, found: LocatedTensor) -> None:
    expected = (SAFETENSORS_DTYPES[record.dtype], record.shape)
    if (found.info.storage, found.info.shape) != expected:
        raise _rejected(
            "CKE707",
            folder,
            path.replace("tensor_path", "shape"),
            f"expected {expected[0]} {list(expected[1])} as recorded, got {found.info.storage} "
            f"{list(found.info.shape)} in the file",
        )


def _check_size(folder: Path, path: str, record: Record, got: int) -> None:
    expected = NUMPY_DTYPES[record.dtype].itemsize
    for size in record.shape:
        expected *= size
    if got != expected:
        raise _rejected("CKE707", folder, path, f"expected {expected} bytes, got {got}")


def _inside(folder: Path, name: str, path: str) -> Path:
    file = folder / name
    parts = Path(name).parts
    if not name or Path(name).is_absolute() or ".." in parts:
        raise _rejected("CKE708", folder, path, "expected a file inside the trace folder")
    if not file.is_file() or file.is_symlink():
        raise _rejected("CKE708", folder, path, f"expected a regular file `{name}`, got none")
    return file


def _header(folder: Path, trace: Trace, file: Path, path: str) -> dict[str, LocatedTensor]:
    """Return the tensors of a file; what is wrong with it is told of the record that names it."""
    try:
        return read_header(file)
    except CkeError as error:
        first = error.diagnostics[0]
        key = "" if first.path is None else f"#{first.path}"
        for where, record in placed_records(trace):
            if key and (record.tensor_path or "").endswith(key):
                path = f"{where}.tensor_path"
        message = f"`{file.name}{key}`: {first.message}"
        raise _rejected("CKE707", folder, path, message) from None


def _rejected(code: str, folder: Path, path: str, message: str) -> RejectedError:
    return RejectedError(
        Diagnostic(code=code, file=f"{folder.name}/{DOCUMENT}", path=path, message=message)
    )
