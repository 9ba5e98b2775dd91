"""From a circuit and a model to a package: the compiler as one function.

Everything is made in memory; `package.write_package` puts it on disk. Non-goal: the user's cache
and finding the circuit of a model, which are `cke.api`.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec
import rfc8785

from cke.codegen.build_ir import BuildIR
from cke.codegen.checkpoints import unmatched_captures
from cke.codegen.emit import emit, line_table
from cke.codegen.levels import Levels
from cke.codegen.manifest import encode_manifest, make_manifest
from cke.codegen.package import MANIFEST, Package
from cke.codegen.passes.instantiate import instantiate
from cke.codegen.pipeline import lower
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.model_source import ModelSource

COMPILER = ("cke.kernel_registry", "cke.codegen", "cke.dsl", "cke.schemas", "cke.circuits")
"""What decides the text of a package beside the model: code, contracts and library circuits."""


def build(
    circuit: str | Path, source: ModelSource, dtype: str, capture: Sequence[str] = ()
) -> Package:
    """Return the package of a circuit, a library name or a path, for a model."""
    return package_of(lower_circuit(circuit, source, dtype, capture))


def lower_circuit(
    circuit: str | Path, source: ModelSource, dtype: str, capture: Sequence[str] = ()
) -> Levels:
    """Return a circuit bound to a model, at every level."""
    ir = instantiate(load_circuit(circuit), source, dtype)
    levels = lower(msgspec.structs.replace(ir, capture=tuple(sorted(capture))))
    unmatched = unmatched_captures(levels.build)
    if unmatched:
        raise _no_checkpoint(unmatched, levels.build)
    return levels


def _no_checkpoint(patterns: tuple[str, ...], ir: BuildIR) -> CkeError:
    note = Note("`cke dump CIRCUIT --stage graph` lists every checkpoint after `@`", label="help")
    return CkeError(
        Diagnostic(
            code="CKE572",
            file=ir.file,
            message=f"expected a capture of a checkpoint, got `{pattern}`, which names none",
            notes=(note,),
        )
        for pattern in patterns
    )


def package_of(levels: Levels) -> Package:
    """Return the package of a circuit that is lowered: code and manifest."""
    modules = emit(msgspec.json.encode(levels.calls))
    lines = {name: line_table(text) for name, text in modules.items() if name != "__init__.py"}
    kernels = {
        call.kernel_id
        for program in levels.calls.programs
        for function in program.functions
        for call in function.calls
    }
    manifest = make_manifest(levels, kernel_hashes(kernels), lines)
    contents = {name: text.encode() for name, text in modules.items()}
    return Package(levels.build.circuit, {**contents, MANIFEST: encode_manifest(manifest)})


def kernel_hashes(kernel_ids: Sequence[str] | set[str]) -> dict[str, str]:
    """Return the sha256 of the contract and the code of every kernel, by file."""
    names = [
        name
        for kernel_id in sorted(kernel_ids)
        for name in (f"contracts/{kernel_id}.toml", f"kernels/{kernel_id}.py")
    ]
    root = files("cke.kernel_registry")
    return {name: sha256((root / name).read_bytes()).hexdigest() for name in names}


def build_key(
    circuit: str | Path, source: ModelSource, dtype: str, capture: Sequence[str] = ()
) -> str:
    """Return the key of a build in the user's cache: equal keys give equal packages.

    The key covers the circuit's files, the model's config and tensor headers, the run dtype, the
    captures, and the compiler with its registry.
    """
    tensors = source.tensors or {}
    headers = {name: [list(info.shape), info.storage] for name, info in tensors.items()}
    body: dict[str, Any] = {
        "circuits": load_circuit(circuit).sources,
        "config": msgspec.json.encode(source.config, order="sorted").decode(),
        "format": source.format,
        "tensors": headers if source.tensors is not None else None,
        "dtype": dtype,
        "capture": sorted(capture),
        "compiler": {name: _folder_hash(files(name)) for name in COMPILER},
    }
    return sha256(rfc8785.dumps(body)).hexdigest()


def _folder_hash(folder: Traversable) -> str:
    """Return one sha256 over the names and contents of a folder's sources, in order of name."""
    digest = sha256()
    for item in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if item.name == "__pycache__":
            continue
        content = _folder_hash(item).encode() if item.is_dir() else item.read_bytes()
        digest.update(f"{item.name}\0{sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()
