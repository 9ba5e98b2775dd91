"""A generated package in memory: its manifest, and the functions of each phase.

Goal: one way to reach generated code, by folder. Non-goal: building; what is not there is an error.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import msgspec

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.traceback import CircuitLines, line_tables
from cke.schemas.call_ir import CallIR, Program
from cke.schemas.manifest import Manifest

MANIFEST = "manifest.json"
IMPORTING = Lock()
"""Held while a module is imported: nobody is given one that has run in part."""


class Package(msgspec.Struct, frozen=True):
    """Modules by phase, and what is known of them; `manifest` is absent in hand-written ones."""

    calls: CallIR
    modules: dict[str, ModuleType]
    manifest: Manifest | None = None
    folder: Path | None = None

    def program(self, phase: str) -> Program:
        """Return the program of a phase that the package has."""
        return next(program for program in self.calls.programs if program.phase == phase)

    def function(self, phase: str, name: str) -> Callable[..., Any]:
        """Return a generated function by name; `step` is the whole step."""
        found: Callable[..., Any] = getattr(self.modules[phase], name)
        return found

    def circuit_lines(self) -> CircuitLines:
        """Return the context in which an exception from generated code names its circuit line."""
        if self.manifest is None or self.folder is None:
            return CircuitLines({})
        return CircuitLines(line_tables(self.folder, self.manifest))

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases: prefill and decode, or encode."""
        return tuple(program.phase for program in self.calls.programs)


def load_package(folder: Path) -> Package:
    """Import the package that stands at `folder`."""
    manifest = read_manifest(folder)
    modules = {
        program.phase: _import(folder / f"{program.phase}.py")
        for program in manifest.calls.programs
    }
    return Package(manifest.calls, modules, manifest, folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the package at `folder`."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise MissingInputError(
            Diagnostic(
                code="CKE611",
                message=f"expected a generated package, got a folder without `{MANIFEST}`",
                file=str(folder),
                notes=(Note("build it with `cke build CIRCUIT --model PATH`", label="help"),),
            )
        ) from None
    except msgspec.DecodeError as error:
        raise CkeError(
            Diagnostic(
                code="CKE612",
                message=f"the manifest cannot be read: {error}",
                file=str(path),
                notes=(Note("remove the folder and build the package again", label="help"),),
            )
        ) from None


def _import(path: Path) -> ModuleType:
    """Import a module by path, under a name of its own; the same path is imported once."""
    with IMPORTING:
        return _imported(path)


def _imported(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"cke.generated._{digest}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise MissingInputError(
            Diagnostic(
                code="CKE611",
                message=f"expected the module `{path.name}` of a generated package, got no file",
                file=str(path),
                notes=(Note("remove the folder and build the package again", label="help"),),
            )
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
