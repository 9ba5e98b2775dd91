"""`load_circuit`: a name or path to a `Circuit`, with everything it inherits and uses merged.

The closure over `use` and `from` is read first, then merged from the oldest ancestor down.
Every problem of a stage is reported at once.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.flatten import circuit_head, flatten
from cke.dsl.library import Place, find, library, read_file, start
from cke.dsl.merge import Problems
from cke.dsl.names import did_you_mean
from cke.dsl.parse import parse
from cke.errors import CkeError, Diagnostic, Note, Span


class ResolveErrors(CkeError):
    """Files that do not fit together."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A file and what it names: its parent and the files it uses, by shown name."""

    file: syntax.File
    parent: str | None
    used: tuple[str, ...]


def load_circuit(name_or_path: str | Path, text: bytes | None = None) -> Circuit:
    """Return the flattened circuit; `text` stands for the main file's bytes on disk."""
    path, shown, places = start(name_or_path)
    reader = _Reader()
    main = read_file(path, shown) if text is None else parse(text, shown)
    reader.read(main, places, ())
    reader.raise_problems()
    files = {name: item.file for name, item in reader.loaded.items()}
    circuit, problems = flatten(files, reader.lineage(main.name), reader.used())
    if problems:
        raise ResolveErrors(with_source(problems, files))
    return circuit


class _Reader:
    """Reads the closure of a file; `loaded` holds each file once, users before what they use."""

    def __init__(self) -> None:
        self.loaded: dict[str, Loaded] = {}
        self.problems: Problems = []

    def raise_problems(self) -> None:
        if self.problems:
            files = {name: item.file for name, item in self.loaded.items()}
            raise ResolveErrors(with_source(self.problems, files))

    def read(self, file: syntax.File, places: tuple[Place, ...], path: tuple[str, ...]) -> None:
        """Read what the file inherits and uses."""
        if file.name in self.loaded:
            return
        self.loaded[file.name] = Loaded(file=file, parent=None, used=())
        parent: str | None = None
        used: list[str] = []
        for item in file.items:
            if isinstance(item, syntax.Circuit) and item.parent is not None:
                parent = self._parent(item, places, (*path, file.name))
            elif isinstance(item, syntax.Use):
                found = self._open(item.path, item.span, places, (*path, file.name))
                if found is not None:
                    self._check_version(item, self.loaded[found].file)
                    used.append(found)
        self.loaded[file.name] = Loaded(file=file, parent=parent, used=tuple(used))

    def lineage(self, name: str) -> tuple[str, ...]:
        """Return the shown names of the file and its ancestors, oldest first."""
        names: list[str] = []
        current: str | None = name
        while current is not None:
            names.insert(0, current)
            current = self.loaded[current].parent
        return tuple(names)

    def used(self) -> tuple[str, ...]:
        """Return every file in the order of use, what a file uses before the file itself."""
        order: list[str] = []

        def visit(name: str) -> None:
            item = self.loaded[name]
            for other in (*([item.parent] if item.parent else []), *item.used):
                if other not in order:
                    visit(other)
            order.append(name)

        visit(next(iter(self.loaded)))
        return tuple(order)

    def _parent(
        self, item: syntax.Circuit, places: tuple[Place, ...], path: tuple[str, ...]
    ) -> str | None:
        assert item.parent is not None
        found = self._open(item.parent.name, item.parent.span, places, path)
        if found is None:
            return None
        head = circuit_head(self.loaded[found].file)
        if head is None or head.version != item.parent_version:
            got = "no circuit" if head is None else f"version {head.version}"
            self.problems.append(
                Diagnostic(
                    code="CKE203",
                    message=f"expected `{item.parent.name}@{item.parent_version}`, got {got}",
                    span=item.parent.span,
                    notes=() if head is None else (Note("declared at", head.span),),
                )
            )
        return found

    def _open(
        self, name: str, span: Span, places: tuple[Place, ...], path: tuple[str, ...]
    ) -> str | None:
        place = find(name, places)
        if place is None:
            self.problems.append(_not_found(name, span, places))
            return None
        shown = place.shown(name)
        if shown in path:
            chain = " → ".join([*path[path.index(shown) :], shown])
            message = f"`{name}` uses itself: {chain}"
            self.problems.append(Diagnostic(code="CKE204", message=message, span=span))
            return None
        if shown not in self.loaded:
            inner = (library(),) if place.is_library else places
            self.read(read_file(place.path(name), shown), inner, path)
        return shown

    def _check_version(self, use: syntax.Use, file: syntax.File) -> None:
        if use.version is None:
            return
        versions = {
            item.version
            for item in file.items
            if isinstance(item, syntax.Taxonomy | syntax.Circuit)
        }
        if use.version not in versions:
            listed = ", ".join(map(str, sorted(versions))) or "none"
            message = f"`{use.path}` has version {listed}, got {use.version}"
            self.problems.append(Diagnostic(code="CKE203", message=message, span=use.span))


def _not_found(name: str, span: Span, places: tuple[Place, ...]) -> Diagnostic:
    known: dict[str, Span | None] = {}
    for place in places:
        for path in sorted(place.folder.glob("**/*.circuit")):
            relative = path.relative_to(place.folder).with_suffix("")
            known[".".join(relative.parts)] = None
    return Diagnostic(
        code="CKE202",
        message=f"no file for `{name}` beside the circuit or in the library",
        span=span,
        notes=did_you_mean(name, known),
    )


def with_source(
    problems: Iterable[Diagnostic], files: Mapping[str, syntax.File]
) -> list[Diagnostic]:
    """Return the diagnostics, each with the line that it is about."""
    return [_with_line(problem, files) for problem in problems]


def _with_line(problem: Diagnostic, files: Mapping[str, syntax.File]) -> Diagnostic:
    span = problem.span
    if span is None or problem.source is not None or span.file not in files:
        return problem
    return msgspec.structs.replace(problem, source=files[span.file].line(span.line))
