"""A generated package: its modules and manifest in memory, and on disk all or nothing."""

import difflib
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

MANIFEST = "manifest.json"


class Package(msgspec.Struct, frozen=True):
    """Files of a package by name: `__init__.py`, one module per phase, `manifest.json`."""

    name: str
    files: dict[str, bytes]


def write_package(package: Package, folder: Path) -> None:
    """Write the package as `folder`, replacing what stands there; never leave half of one.

    The files go to a new folder beside it, which takes the name in one rename. A folder that is
    replaced is moved away first and removed last.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fresh = temporary / "new"
        fresh.mkdir()
        for name, content in package.files.items():
            _write(fresh / name, content)
        if folder.exists():
            folder.rename(temporary / "old")
        fresh.rename(folder)
    finally:
        if not folder.exists() and (temporary / "old").exists():
            (temporary / "old").rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_package(name: str, folder: Path) -> Package:
    """Return the package that stands at `folder`; a missing folder is an empty package."""
    paths = sorted(path for path in folder.glob("*") if path.is_file()) if folder.exists() else []
    return Package(name, {path.name: path.read_bytes() for path in paths})


def package_diff(old: Package, new: Package) -> str:
    """Return a unified diff of two packages, empty when they are equal."""
    parts = []
    for name in sorted({*old.files, *new.files}):
        before, after = old.files.get(name, b""), new.files.get(name, b"")
        if before != after:
            parts.extend(_file_diff(f"{new.name}/{name}", before, after))
    return "\n".join(parts)


def _file_diff(name: str, before: bytes, after: bytes) -> list[str]:
    if name.endswith(MANIFEST):
        return [f"--- a/{name}", f"+++ b/{name}", "manifests differ"]
    return list(
        difflib.unified_diff(
            before.decode().splitlines(),
            after.decode().splitlines(),
            f"a/{name}",
            f"b/{name}",
            lineterm="",
        )
    )
