"""A generated package: its files in memory, on disk all or nothing, and the diff of two."""

import difflib
from pathlib import Path

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import folder_atomically

MANIFEST = "manifest.json"


class Package(msgspec.Struct, frozen=True):
    """Files of a package by name: `__init__.py`, one module per phase, `manifest.json`."""

    name: str
    files: dict[str, bytes]


def write_package(package: Package, folder: Path, *, keep: bool = False) -> None:
    """Write the package as `folder`, replacing the one that stands there; never leave half of one.

    A folder that holds something else is an error. With `keep`, a package that stands there by the
    end stays: of two that are built at once under one key, the first.
    """
    if folder.exists() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
        raise _not_a_package(folder)
    with folder_atomically(folder, keep=keep) as fresh:
        for name, content in package.files.items():
            (fresh / name).write_bytes(content)


def _not_a_package(folder: Path) -> CkeError:
    note = Note("give `-o` a new folder, or one that `cke build` made", label="help")
    message = f"expected a generated package or an empty folder, got one without `{MANIFEST}`"
    return CkeError(Diagnostic(code="CKE571", file=str(folder), message=message, notes=(note,)))


def read_package(name: str, folder: Path) -> Package:
    """Return the package that stands at `folder`; a missing folder is an empty package."""
    paths = sorted(path for path in folder.glob("*") if path.is_file()) if folder.exists() else []
    return Package(name, {path.name: path.read_bytes() for path in paths})


def package_diff(old: Package, new: Package) -> str:
    """Return a unified diff of two packages, empty when they are equal."""
    lines: list[str] = []
    for name in sorted({*old.files, *new.files}):
        before, after = old.files.get(name, b""), new.files.get(name, b"")
        if before != after:
            lines += difflib.unified_diff(
                _readable(name, before),
                _readable(name, after),
                f"a/{new.name}/{name}",
                f"b/{new.name}/{name}",
                lineterm="",
            )
    return "\n".join(lines)


def _readable(name: str, content: bytes) -> list[str]:
    """Return the lines of a file; a manifest is indented, so that a diff shows what changed."""
    if name == MANIFEST and content:
        content = msgspec.json.format(content, indent=1)
    return content.decode().splitlines()
