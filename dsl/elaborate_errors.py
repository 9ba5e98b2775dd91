"""Diagnostics of elaboration, collected over a whole circuit."""

from collections.abc import Iterator
from contextlib import contextmanager

from cke.dsl.scope import Instance
from cke.errors import CkeError, Diagnostic, Note, Span


class PoisonedError(Exception):
    """A statement reads a value whose own error is reported already."""


class Errors:
    """Diagnostics in the order in which they were found, each once."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    @contextmanager
    def collected(self, instance: Instance) -> Iterator[None]:
        """Keep the errors of the body, with a note per call site of the block."""
        try:
            yield
        except PoisonedError:
            pass
        except CkeError as error:
            notes = tuple(_call_sites(instance))
            for diagnostic in error.diagnostics:
                self._add(diagnostic, notes)

    def _add(self, diagnostic: Diagnostic, notes: tuple[Note, ...]) -> None:
        if any(_same(diagnostic, other) for other in self.found):
            return
        fields = {name: getattr(diagnostic, name) for name in diagnostic.__struct_fields__}
        self.found.append(Diagnostic(**{**fields, "notes": (*diagnostic.notes, *notes)}))


def error(code: str, span: Span, message: str, *notes: Note) -> CkeError:
    """Return an error of one diagnostic at a span."""
    return CkeError(Diagnostic(code=code, span=span, message=message, notes=notes))


def counted(number: int, noun: str) -> str:
    """Return `1 operand` or `2 operands`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _same(a: Diagnostic, b: Diagnostic) -> bool:
    return (a.code, a.span, a.message, a.path) == (b.code, b.span, b.message, b.path)


def _call_sites(instance: Instance) -> Iterator[Note]:
    for each in instance.chain():
        if each.called_at is not None:
            yield Note(f"in `{each.block.name}`, called", each.called_at)
