"""The proven change of a diagnosis as a unified diff against the circuit line it belongs to.

An edit is kept only when the edited circuit, lowered for the same model, differs from the old one
in nothing but that change. What no single edit says (a value that differs by layer, an operand, an
inserted op) gives no patch.
"""

import difflib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cke.codegen.build import lower_circuit
from cke.dsl import syntax
from cke.dsl.library import library
from cke.dsl.parse import parse
from cke.errors import CkeError, Span
from cke.kernel_registry.operators import OPERATORS
from cke.runtime.weights.files import ModelFiles
from cke.schemas.diagnosis import Counterfactual, Diagnosis
from cke.schemas.graph_ir import GraphIR, Op
from cke.schemas.manifest import Manifest

SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*"}
LIBRARY = "circuits/"
ALIGNED = re.compile(r"\A([^\n]*?)( {2,})(?=@|hf |gguf )")


class Edit(msgspec.Struct, frozen=True):
    """Text that replaces a range of the file; offsets count characters."""

    start: int
    end: int
    text: str


def with_patch(
    report: Diagnosis, manifest: Manifest, circuit: str | Path | None, files: ModelFiles, dtype: str
) -> Diagnosis:
    """Return the report with the patch of its proven change; as it is when there is none."""
    found = report.first_divergence
    change = None if found is None else found.confirmed_by
    if found is None or change is None or found.fix_owner != "circuit":
        return report
    patch = circuit_patch(change, found.source, manifest, circuit, files, dtype)
    confirmed = msgspec.structs.replace(change, patch=patch)
    return msgspec.structs.replace(
        report, first_divergence=msgspec.structs.replace(found, confirmed_by=confirmed)
    )


def circuit_patch(
    change: Counterfactual,
    source: str | None,
    manifest: Manifest,
    circuit: str | Path | None,
    files: ModelFiles,
    dtype: str,
) -> str | None:
    """Return the unified diff that makes the change, None when no single edit does."""
    if change.kind not in ("attribute", "operator") or source is None:
        return None
    target = _target(manifest.graph, change, source)
    if target is None:
        return None
    with tempfile.TemporaryDirectory(prefix="cke-patch-") as name:
        folder = Path(name) / "circuits"
        main = _copied(folder, manifest, circuit)
        path = folder / target.span.file.removeprefix(LIBRARY)
        text = path.read_text(encoding="utf-8")
        for edit in edits(text, target, change):
            edited = applied(text, edit)
            path.write_text(edited, encoding="utf-8")
            if _makes(change, target, manifest, main, files, dtype):
                return _diff(text, edited, target.span.file)
    return None


def applied(text: str, edit: Edit) -> str:
    """Return the text with the edit made; what is aligned after it on the line stays in place."""
    rest = text[edit.end :]
    gap = ALIGNED.search(rest)
    if gap is not None:
        grown = len(edit.text) - (edit.end - edit.start)
        width = max(2, len(gap[2]) - grown)
        rest = rest[: gap.start(2)] + " " * width + rest[gap.end(2) :]
    return text[: edit.start] + edit.text + rest


def _target(graph: GraphIR, change: Counterfactual, source: str) -> Op | None:
    """Return the op to edit, when every op of its line has the one old value."""
    ops = [
        op
        for program in graph.programs
        for function in program.functions
        for op in function.ops
        if op.id == change.op and str(op.span) == source
    ]
    if change.kind == "attribute" and any(
        change.what in op.scalars or op.attributes.get(change.what) != change.old for op in ops
    ):
        return None
    return ops[0] if ops else None


def _copied(folder: Path, manifest: Manifest, circuit: str | Path | None) -> Path:
    """Copy the library, and a user's files over it; return the main file of the copy."""
    shutil.copytree(library().folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    own = None if circuit is None else Path(circuit)
    if own is None or not own.is_file():
        return folder / manifest.calls.file.removeprefix(LIBRARY)
    if own.resolve().is_relative_to(library().folder.resolve()):
        return folder / own.resolve().relative_to(library().folder.resolve())
    for item in own.parent.rglob("*.circuit"):
        copy = folder / item.relative_to(own.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item, copy)
    return folder / own.name


def edits(text: str, target: Op, change: Counterfactual) -> Iterator[Edit]:
    """Yield the edits of the file that may make the change, the most exact first."""
    lines = _Lines(text)
    file = parse(text, target.span.file)
    for block, node in _nodes(file, target.span):
        if change.kind == "operator":
            yield from _operator_edits(lines, node, change)
            continue
        value = written(change.new)
        if value is None:
            return
        if isinstance(node, syntax.Call):
            yield from _declaration(lines, block, node, target, change.what, value)
            yield from _argument(lines, node.span, node.arguments, change.what, value)
        if isinstance(node, syntax.Binary):
            for operand in (node.right, node.left):
                yield lines.edit(operand.span, value)


def _nodes(file: syntax.File, span: Span) -> Iterator[tuple[syntax.Block, Any]]:
    """Yield the calls and binary expressions that start where the op does, its own first."""
    start = (span.line, span.column)
    found = [
        (block, node)
        for block in file.items
        if isinstance(block, syntax.Block)
        for node in _walk(block.body)
        if isinstance(node, syntax.Call | syntax.Binary)
        and (node.span.line, node.span.column) == start
    ]
    yield from sorted(
        found, key=lambda item: (item[1].span.end_line, item[1].span.end_column) != _end(span)
    )


def _end(span: Span) -> tuple[int, int]:
    return span.end_line, span.end_column


def _walk(node: object) -> Iterator[object]:
    if isinstance(node, tuple):
        for item in node:
            yield from _walk(item)
    elif isinstance(node, syntax.Node):
        yield node
        for name in node.__struct_fields__:
            yield from _walk(getattr(node, name))


def _operator_edits(lines: "_Lines", node: Any, change: Counterfactual) -> Iterator[Edit]:
    if isinstance(node, syntax.Binary) and change.new in SYMBOLS:
        yield lines.edit(node.operator_span, SYMBOLS[change.new])
    named = isinstance(node, syntax.Call) and isinstance(node.function, syntax.Name)
    if named and change.new in OPERATORS:
        yield lines.edit(node.function.span, str(change.new))


def _declaration(
    lines: "_Lines", block: syntax.Block, node: syntax.Call, op: Op, name: str, value: str
) -> Iterator[Edit]:
    """Yield the edit of the part that a call uses: its one constructor of the operator."""
    function = node.function.value if isinstance(node.function, syntax.Index) else node.function
    if not isinstance(function, syntax.Name):
        return
    constructors = [
        choice.constructor
        for part in block.parts
        if isinstance(part, syntax.Part) and part.name == function.name
        for choice in part.choices
        if choice.constructor.name == op.operator
    ]
    for constructor in constructors:
        yield from _argument(lines, constructor.span, constructor.arguments, name, value)


def _argument(
    lines: "_Lines", span: Span, arguments: tuple[syntax.Argument, ...], name: str, value: str
) -> Iterator[Edit]:
    """Yield the argument replaced; or, where the call does not name it, added at the end."""
    for argument in arguments:
        short = argument.name is None and isinstance(argument.value, syntax.Name)
        if argument.name == name or (short and argument.value.name == name):  # type: ignore[union-attr]
            yield lines.edit(argument.span, f"{name}: {value}")
            return
    end = lines.offset(span.end_line, span.end_column)
    if arguments:
        yield Edit(end - 1, end - 1, f", {name}: {value}")
    else:
        yield Edit(end, end, f"({name}: {value})")


class _Lines:
    """Offsets in a text, by line and column from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column - 1

    def edit(self, span: Span, text: str) -> Edit:
        return Edit(
            self.offset(span.line, span.column), self.offset(span.end_line, span.end_column), text
        )


def written(value: Any) -> str | None:
    """Return a value as a circuit writes it; None for one that has no literal."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return value if isinstance(value, str) else re.sub(r"e([-+])0+", r"e\1", repr(value))
    return None


def _makes(
    change: Counterfactual,
    target: Op,
    manifest: Manifest,
    main: Path,
    files: ModelFiles,
    dtype: str,
) -> bool:
    """Whether the edited circuit is the old one with this change, and with nothing else."""
    try:
        graph = lower_circuit(main, files, dtype, manifest.capture).graph
    except CkeError:
        return False
    before, after = _ops(manifest.graph), _ops(graph)
    if len(before) != len(after):
        return False
    return all(
        _expected(old, change) == new if _is_target(old[0], target) else old[1:] == new[1:]
        for old, new in zip(before, after, strict=True)
    )


def _is_target(op: Op, target: Op) -> bool:
    return (op.id, op.span) == (target.id, target.span)


def _expected(old: tuple[Op, Any, Any, Any], change: Counterfactual) -> "_Same":
    _, operator, attributes, inputs = old
    if change.kind == "operator":
        return _Same((change.new, None, inputs))
    return _Same((operator, {**attributes, change.what: change.new}, inputs))


class _Same:
    """Equal to an op of the same operator, attributes and producers; attributes None are any."""

    def __init__(self, expected: tuple[Any, Any, Any]) -> None:
        self.expected = expected

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, tuple)
        operator, attributes, inputs = self.expected
        same = (operator, inputs) == (other[1], other[3])
        return same and (attributes is None or attributes == other[2])

    __hash__ = None  # type: ignore[assignment]


def _ops(graph: GraphIR) -> list[tuple[Op, str, dict[str, Any], tuple[Any, ...]]]:
    """Return every op with its operator, attributes and inputs; edges are named by their maker."""
    found = []
    for program in graph.programs:
        for function in program.functions:
            places = {
                edge.name: (index, place)
                for index, op in enumerate(function.ops)
                for place, edge in enumerate(op.results)
            }
            for op in function.ops:
                inputs = tuple(places.get(name or "", name) for name in op.inputs)
                found.append((op, op.operator, dict(op.attributes), (inputs, op.weights)))
    return found


def _diff(old: str, new: str, file: str) -> str:
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{file}", f"b/{file}"
        )
    )
