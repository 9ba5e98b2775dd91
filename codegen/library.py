"""The library: circuits with a committed reference config, and their generated packages.

`circuits/reference/<circuit>/config.json` is the config that `generated/<circuit>/` is built from.
It has no tensors, so that bindings name the first source of each weight.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from cke.codegen.build import build
from cke.codegen.package import Package, package_diff, read_package, write_package
from cke.schemas.model_source import TensorInfo

REFERENCE_DTYPE = "f32"


class ConfigSource(msgspec.Struct):
    """A model of which only config.json is at hand."""

    name: str
    config: dict[str, Any]
    format: Literal["hf", "gguf"] = "hf"
    tensors: dict[str, TensorInfo] | None = None

    def values(self, key: str) -> list[float]:
        """There are no tensors: whoever asks has missed that `tensors` is None."""
        raise AssertionError(f"a config has no tensor `{key}`")


def library_circuits() -> tuple[str, ...]:
    """Return the names of the circuits that have a reference config, sorted."""
    folder = files("cke.circuits") / "reference"
    if not folder.is_dir():
        return ()
    return tuple(sorted(item.name for item in folder.iterdir() if item.is_dir()))


def reference_source(circuit: str) -> ConfigSource:
    """Return the reference config of a library circuit."""
    path = files("cke.circuits") / "reference" / circuit / "config.json"
    return ConfigSource(circuit, msgspec.json.decode(path.read_bytes()))


def build_library(circuit: str) -> Package:
    """Return the package of a library circuit, from its reference config."""
    return build(circuit, reference_source(circuit), REFERENCE_DTYPE)


def generated_folder() -> Path:
    """Return the folder of the packages that are checked in."""
    return Path(str(files("cke.generated")))


def library_diff(folder: Path) -> str:
    """Return how the packages under `folder` differ from what the circuits give, or nothing."""
    circuits = library_circuits()
    stale = sorted(
        item.name for item in folder.iterdir() if item.is_dir() and item.name not in circuits
    )
    fresh = [build_library(name) for name in circuits]
    fresh += [Package(name, {}) for name in stale if read_package(name, folder / name).files]
    diffs = (package_diff(read_package(item.name, folder / item.name), item) for item in fresh)
    return "\n".join(diff for diff in diffs if diff)


def write_library(folder: Path) -> tuple[str, ...]:
    """Write every library package under `folder` and return their names."""
    for name in library_circuits():
        write_package(build_library(name), folder / name)
    return library_circuits()
