"""Errors that a user sees: where, what was expected, what was found, how to fix it.

Every error has a code of one of the tables under ``codes/``; ``cke explain CODE`` prints its page.
Non-goal: recovery. A stage collects its diagnostics and raises once.
"""

from collections.abc import Iterable

import msgspec


class Span(msgspec.Struct, frozen=True, order=True):
    """A range of a source file; lines and columns count from 1, `end_column` is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Note(msgspec.Struct, frozen=True):
    """A remark under a diagnostic; `span` points at other text when there is some."""

    text: str
    span: Span | None = None
    label: str = "note"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: at `span` of a circuit, or at `file` and JSON `path` of data."""

    code: str
    message: str
    span: Span | None = None
    file: str | None = None
    path: str | None = None
    source: str | None = None
    notes: tuple[Note, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._excerpt(), *map(_note, self.notes)])

    def _headline(self) -> str:
        where = str(self.span) if self.span else self.file
        path = f"`{self.path}`" if self.path else None
        place = ": ".join(part for part in (where, path) if part)
        return f"{place + ': ' if place else ''}error[{self.code}]: {self.message}"

    def _excerpt(self) -> list[str]:
        if self.span is None or self.source is None:
            return []
        number = f"{self.span.line:>4}"
        single = self.span.end_line == self.span.line
        width = self.span.end_column - self.span.column if single else 1
        caret = " " * (self.span.column - 1) + "^" * max(1, width)
        return [f"{number} | {self.source}", f"{' ' * len(number)} | {caret}"]


def _note(note: Note) -> str:
    where = f" {note.span}" if note.span else ""
    return f"  {note.label}: {note.text}{where}"


class CkeError(Exception):
    """A user's mistake or a bad input, as one or more diagnostics; `exit_code` as in the docs."""

    exit_code = 2

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        single = isinstance(diagnostics, Diagnostic)
        self.diagnostics: tuple[Diagnostic, ...] = (
            (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        )
        assert single or self.diagnostics, "an error needs a diagnostic"
        super().__init__(str(self))

    def __str__(self) -> str:
        return "\n".join(map(str, self.diagnostics))


class MissingInputError(CkeError):
    """A file, a package or an oracle that the command needs is not there."""

    exit_code = 3


class RejectedError(CkeError):
    """Evidence is incomplete, malformed or not neutral, and is not used."""

    exit_code = 4
