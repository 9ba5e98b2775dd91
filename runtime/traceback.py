"""Tracebacks of generated code that name the circuit line.

A generated call was written by a line of a circuit; when it raises, that line is what the reader
can change. Goal: one note per exception, and nothing hidden.
"""

from collections.abc import Mapping
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from cke.schemas.manifest import Manifest

Tables = Mapping[str, Mapping[int, str]]
"""Path of a generated module → its line → the circuit line, as `file:line`."""


def line_tables(folder: Path, manifest: Manifest) -> Tables:
    """Return the line tables of the package that stands at `folder`."""
    return {
        str(folder / module): {int(line): place for line, place in table.items()}
        for module, table in manifest.lines.items()
    }


class CircuitLines:
    """A context in which an exception from generated code gains a note with the circuit line.

    >>> with CircuitLines(line_tables(folder, manifest)):  # doctest: +SKIP
    ...     module.layer(weights, state, x, positions)
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Add the note of the innermost generated line; the exception goes on."""
        if error is None:
            return
        note = self.note(traceback)
        if note is not None and note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def note(self, traceback: TracebackType | None) -> str | None:
        """Return the note for a traceback, or None when no generated line is in it."""
        found = None
        for frame, line in walk_tb(traceback):
            place = self._tables.get(frame.f_code.co_filename, {}).get(line)
            if place is not None:
                found = f"{place}: raised by `{frame.f_code.co_name}`, generated from this line"
        return found
