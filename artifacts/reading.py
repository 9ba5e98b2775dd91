"""Read one artifact: bounded, strict, then checked against its format and against itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from cke.artifacts.check_layers import check_layer_trace
from cke.artifacts.check_report import check_run_report
from cke.artifacts.check_trace import check_decode_trace
from cke.artifacts.fingerprints import canonical_sha
from cke.artifacts.refusal import refuse_document
from cke.artifacts.retention import check_retention
from cke.schemas.decode_trace import DecodeTrace
from cke.schemas.execution_manifest import SCHEMA
from cke.schemas.layer_trace import LayerTrace
from cke.schemas.reading import Limits, convert, read_json
from cke.schemas.run_report import PrefixBinding, RunReport

T = TypeVar("T", bound=msgspec.Struct)
Artifact = RunReport | DecodeTrace | LayerTrace
MIB = 1 << 20
REPORT_LIMITS = Limits(max_bytes=4 * MIB, max_keys=4096, max_items=65536, links=False)
TRACE_LIMITS = Limits(max_bytes=16 * MIB, max_keys=1 << 20, max_items=1 << 20, links=False)
BINDING_LIMITS = Limits(max_bytes=16 << 10, max_keys=64, max_items=64, links=False)


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """A document as it stands, its struct, and its canonical SHA-256."""

    document: dict[str, Any]
    value: T
    sha256: str


def read_run_report(path: Path) -> Loaded[RunReport]:
    """Return the run report at `path`, older ones without `kv_cache` or set id among them."""
    return load_run_report(read_json(path, REPORT_LIMITS), path)


def read_decode_trace(path: Path) -> Loaded[DecodeTrace]:
    """Return the decode trace at `path`."""
    return load_decode_trace(read_json(path, TRACE_LIMITS), path)


def read_layer_trace(path: Path) -> Loaded[LayerTrace]:
    """Return the layer trace at `path`, legacy ones among them."""
    return load_layer_trace(read_json(path, TRACE_LIMITS), path)


def load_run_report(document: Any, path: Path) -> Loaded[RunReport]:
    """Return a parsed run report, checked."""
    return _load(document, RunReport, "run_report", check_run_report, path)


def load_decode_trace(document: Any, path: Path) -> Loaded[DecodeTrace]:
    """Return a parsed decode trace, checked."""
    return _load(document, DecodeTrace, "decode_trace", check_decode_trace, path)


def load_layer_trace(document: Any, path: Path) -> Loaded[LayerTrace]:
    """Return a parsed layer trace, checked."""
    return _load(document, LayerTrace, "layer_trace", check_layer_trace, path)


def read_binding(path: Path) -> PrefixBinding:
    """Return the source binding of a forced prefix: exact keys, at most 16 KiB, no link."""
    return convert(read_json(path, BINDING_LIMITS), PrefixBinding, path)


def check_identity(document: Any, path: Path, kind: str) -> None:
    """Refuse anything but an object of the one schema and of the expected kind."""
    if not isinstance(document, dict):
        refuse_document(path, "$", "expected an object")
    for key, expected in (("schema", SCHEMA), ("kind", kind)):
        if document.get(key) != expected:
            refuse_document(path, f"$.{key}", f"expected `{expected}`, got `{document.get(key)}`")


def _load(
    document: Any,
    kind: type[T],
    name: str,
    check: Callable[[T, Path], None],
    path: Path,
) -> Loaded[T]:
    check_identity(document, path, name)
    check_retention(document, path, name)
    value = convert(document, kind, path)
    check(value, path)
    return Loaded(document, value, canonical_sha(document))
