"""Where circuit files are: the library that ships with the package, and a user's own folder.

A name of the library is its path without the suffix, such as `blocks.decoder`. Files of the
library are shown as `circuits/…`, a user's files by their path from the main file's folder.
"""

from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from cke.dsl import syntax
from cke.dsl.parse import parse
from cke.errors import CkeError, Diagnostic, MissingInputError

SUFFIX = ".circuit"


class Place(msgspec.Struct, frozen=True):
    """A folder of circuit files, and the prefix under which they are shown."""

    folder: Path
    prefix: str
    is_library: bool

    def path(self, name: str) -> Path:
        """Return where the file of a dotted name would be."""
        return self.folder.joinpath(*name.split(".")).with_suffix(SUFFIX)

    def shown(self, name: str) -> str:
        """Return the file name that spans carry."""
        return f"{self.prefix}{name.replace('.', '/')}{SUFFIX}"


@cache
def library() -> Place:
    """Return the library that ships with the package."""
    return Place(Path(str(resources.files("cke.circuits"))), "circuits/", True)


def library_circuits() -> tuple[str, ...]:
    """Return the names of the library's circuits, sorted."""
    return tuple(sorted(path.stem for path in library().folder.glob(f"*{SUFFIX}")))


def find(name: str, places: tuple[Place, ...]) -> Place | None:
    """Return the first place that has a file of that name."""
    return next((place for place in places if place.path(name).is_file()), None)


def read_file(path: Path, shown: str) -> syntax.File:
    """Parse a file; MissingInputError when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise MissingInputError(
            Diagnostic(code="CKE201", message=f"cannot read the circuit: {reason}", file=shown)
        ) from None
    return _parsed(data, shown)


@cache
def _parsed(data: bytes, shown: str) -> syntax.File:
    return parse(data, shown)


def start(name_or_path: str | Path) -> tuple[Path, str, tuple[Place, ...]]:
    """Return the main file, its shown name, and the places to search from it.

    A string without a suffix or folder is a name of the library; anything else is a path.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and "/" not in text and not text.endswith(SUFFIX):
        if find(text, (library(),)) is None:
            known = ", ".join(library_circuits())
            raise CkeError(
                Diagnostic(code="CKE202", message=f"no circuit `{text}`; the library has {known}")
            )
        return library().path(text), library().shown(text), (library(),)
    path = Path(text)
    if path.resolve().is_relative_to(library().folder.resolve()):
        name = path.resolve().relative_to(library().folder.resolve()).with_suffix("")
        return path, library().shown(name.as_posix()), (library(),)
    return path, path.name, (Place(path.parent, "", False), library())
