"""Read a bug bundle with the care that any file from elsewhere needs.

Only listed files of known names are unpacked, as plain bytes, each checked against its digest and
all together against a limit. What they name (kernels, operators, weights) is looked up, not run.
"""

import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.kernel_registry.contract_files import registry
from cke.kernel_registry.operators import OPERATORS
from cke.schemas.bundle import INDEX as INDEX_SCHEMA
from cke.schemas.bundle import VERSION, Evidence, Index, KeptWeight
from cke.schemas.manifest import Manifest
from cke.xray.bundle_files import (
    DOCUMENTS,
    FILES,
    INDEX,
    MANIFEST,
    MAX_BUNDLE,
    MAX_DOCUMENT,
    TENSORS,
    WEIGHTS,
    file_digest,
)
from cke.xray.replay import NotReplayable

Array = np.ndarray[Any, Any]


def read_manifest(path: Path) -> Manifest:
    """Return a manifest whose kernels and operators this registry has; else CKE733."""
    manifest: Manifest = _decoded(path, Manifest)
    functions = {contract.id: contract.function for contract in registry()}
    for program in manifest.calls.programs:
        for call in (call for item in program.functions for call in item.calls):
            if functions.get(call.kernel_id) != call.function:
                raise malformed(path, f"`{call.kernel_id}.{call.function}` is no kernel's function")
    for ops in (op for p in manifest.graph.programs for f in p.functions for op in f.ops):
        if ops.operator not in OPERATORS:
            raise malformed(path, f"`{ops.operator}` is no operator")
    return manifest


def read_evidence(path: Path) -> Evidence:
    """Return the index of the kept weights."""
    evidence: Evidence = _decoded(path, Evidence)
    return evidence


def _decoded(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise malformed(path, str(error).lower()) from None


def malformed(path: Path, why: str) -> CkeError:
    """Return the error of a bundle that cannot be used."""
    return CkeError(
        Diagnostic(
            code="CKE733",
            file=path.name,
            message=f"expected a bundle of `cke xray bundle`, got one that is malformed: {why}",
            notes=(Note("pack the report again", label="help"),),
        )
    )


def unpack(bundle: Path, folder: Path) -> Index:
    """Extract the files that a bundle lists, and no other, into a folder; each is checked."""
    try:
        with zipfile.ZipFile(bundle) as archive:
            return _extract(bundle, archive, folder)
    except FileNotFoundError:
        raise MissingInputError(
            Diagnostic(
                code="CKE731",
                file=str(bundle),
                message="expected the bundle, got no file",
                notes=(Note("check the path", label="help"),),
            )
        ) from None
    except (zipfile.BadZipFile, RuntimeError, zlib.error, EOFError, OSError) as error:
        raise malformed(bundle, str(error).lower()) from None


def _extract(bundle: Path, archive: zipfile.ZipFile, folder: Path) -> Index:
    found = {item.filename: item for item in archive.infolist()}
    if len(found) != len(archive.infolist()):
        raise malformed(bundle, "a file is in it twice")
    if sum(item.file_size for item in found.values()) > MAX_BUNDLE:
        raise malformed(bundle, f"its files are more than {MAX_BUNDLE >> 30} GiB")
    allowed = {*FILES, MANIFEST, *WEIGHTS, *DOCUMENTS, *TENSORS}
    _copy(archive, found, INDEX, folder, bundle)
    index: Index = _decoded(folder / INDEX, Index)
    if (index.schema, index.version) != (INDEX_SCHEMA, VERSION):
        raise malformed(bundle, f"its index is `{index.schema}` version {index.version}")
    needed = {"report.json", MANIFEST}
    if index.evidence == "op":
        needed |= {*WEIGHTS, *DOCUMENTS, *TENSORS}
    absent = sorted(needed - set(index.files))
    unknown = sorted(set(index.files) - allowed)
    if absent or unknown:
        why = f"no `{absent[0]}`" if absent else f"`{unknown[0]}` is no file of a bundle"
        raise malformed(bundle, why)
    for name, expected in sorted(index.files.items()):
        _copy(archive, found, name, folder, bundle)
        if file_digest(folder / name) != expected:
            raise malformed(bundle, f"`{name}` was changed after it was packed")
    return index


def _copy(
    archive: zipfile.ZipFile,
    found: dict[str, zipfile.ZipInfo],
    name: str,
    folder: Path,
    bundle: Path,
) -> None:
    """Write one file as plain bytes under its known name: no link, no mode, no other path."""
    if name not in found:
        raise malformed(bundle, f"no `{name}`")
    if name.endswith(".json") and found[name].file_size > MAX_DOCUMENT:
        raise malformed(bundle, f"`{name}` is more than {MAX_DOCUMENT >> 20} MiB")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(found[name]) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


class KeptWeights:
    """The weights of a bundle, as a replay asks for them."""

    def __init__(self, folder: Path) -> None:
        evidence = read_evidence(folder / "evidence.json")
        self.constants = evidence.constants
        self.absent = tuple(item.name for item in evidence.weights if item.key is None)
        self._semantic: dict[str, Array] = {}
        self._placed: dict[tuple[str | None, str | None], dict[str, Array]] = {}
        path = folder / "weights.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                for item in evidence.weights:
                    if item.key is not None:
                        self._keep(item, arrays[item.key])
        except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise malformed(path, str(error).lower()) from None

    def _keep(self, item: KeptWeight, raw: Array) -> None:
        array = raw.view(_dtype(item.dtype)).reshape(item.shape)
        if item.kind == "semantic":
            self._semantic[item.name] = array
        else:
            self._placed.setdefault((item.phase, item.step), {})[item.name] = array

    def weight(self, semantic: str) -> Array:
        """Return a semantic weight; one that was not kept cannot be replayed."""
        if semantic not in self._semantic:
            raise _not_kept(semantic)
        return self._semantic[semantic]

    def placed(self, phase: str, step: str) -> Mapping[str, Any]:
        """Return the weights of a step as its kernels take them."""
        return _Placed(self._placed.get((phase, step), {}))


class _Placed(dict[str, Array]):
    def __missing__(self, name: str) -> Array:
        raise _not_kept(name)


def _not_kept(name: str) -> Exception:
    return NotReplayable(f"the weight `{name}`")


def _dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
