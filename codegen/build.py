"""From a circuit and a model to a package: the compiler as one function.

Everything is made in memory; `package.write_package` puts it on disk. Non-goal: the user's cache
and finding the circuit of a model, which are `cke.api`.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import msgspec

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
