"""Building on demand: the circuit of a model, its package in the user's cache, loaded.

A package is kept under a key of everything that decides its text. Looking one up reads no circuit
grammar, so that a warm start does not wait for the compiler. Builds appear whole: one that is
interrupted leaves nothing, and of two at once the first one stays.
"""

from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files as resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from cke.errors.files import cache_folder
from cke.kernel_registry.promotion import preferred
from cke.runtime.package import MANIFEST, Package, load_package
from cke.runtime.weights.files import ModelFiles
from cke.schemas.model_source import ModelSource

Progress = Callable[[str], None]
COMPILER = ("cke.kernel_registry", "cke.codegen", "cke.dsl", "cke.schemas", "cke.circuits")
"""What decides the text of a package beside the model: code, contracts and library circuits."""


def built_package(
    files: ModelFiles,
    circuit: str | Path | None,
    dtype: str,
    capture: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Package:
    """Return the package of a model, from the user's cache or built now."""
    folder = cache_folder("packages", package_key(files, circuit, dtype, capture))
    if not (folder / MANIFEST).is_file():
        from cke.codegen.build import build
        from cke.codegen.package import write_package
        from cke.dsl.match import find_family

        chosen = circuit if circuit is not None else find_family(files).circuit
        if progress is not None:
            progress(f"building `{chosen}` for {files.name} in {dtype}")
        write_package(build(chosen, files, dtype, capture), folder, keep=True)
    return load_package(folder)


def package_key(
    files: ModelSource, circuit: str | Path | None, dtype: str, capture: tuple[str, ...]
) -> str:
    """Return the key of a package: equal keys give equal packages.

    It covers the circuit (with every circuit file beside it, when it is a user's own), the model's
    config and tensor headers, the run dtype, the captures, and the compiler with its library.
    """
    tensors = files.tensors or {}
    body = {
        "circuit": None if circuit is None else str(circuit),
        "files": circuit_files(circuit),
        "format": files.format,
        "config": files.config,
        "tensors": {name: [list(info.shape), info.storage] for name, info in tensors.items()},
        "dtype": dtype,
        "capture": sorted(capture),
        "compiler": {name: _folder_hash(resources(name)) for name in COMPILER},
    }
    if preferred() is not None:
        body["preferred"] = preferred()
    return sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:32]


def circuit_files(circuit: str | Path | None) -> dict[str, str]:
    """Return the sha256 of every circuit file that a user's own circuit may use."""
    path = Path(circuit) if circuit is not None else None
    if path is None or not path.is_file():
        return {}
    found = sorted({path, *path.parent.rglob("*.circuit")})
    return {str(item): sha256(item.read_bytes()).hexdigest() for item in found}


def _folder_hash(folder: Traversable) -> str:
    """Return one sha256 over the names and contents of a folder's files, in order of name."""
    digest = sha256()
    for item in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if item.name == "__pycache__":
            continue
        content = _folder_hash(item).encode() if item.is_dir() else item.read_bytes()
        digest.update(item.name.encode() + b"\0" + sha256(content).digest())
    return digest.hexdigest()
