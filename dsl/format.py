"""`format_text`: circuit text in its one canonical form; comments stay, meaning does not change.

One blank line stands between sections. Points stand in one column, and the sources of the parts
of a block under each other. Depth is never changed. Formatting twice changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence

from cke.dsl import syntax
from cke.dsl.format_expressions import (
    WIDTH,
    arguments,
    expression,
    pair,
    product,
    shape,
    type_,
    wrapped,
)
from cke.dsl.parse import parse

POINT_COLUMN = 60
COMMENT_COLUMN = 42
PART_WIDTH = 140
GAP = "   "


def format_text(text: str | bytes, file: str) -> str:
    """Return the canonical form of a text; SyntaxErrors when it does not parse."""
    return format_file(parse(text, file))


def format_file(file: syntax.File) -> str:
    """Return a tree as text."""
    printer = Printer(file.comments)
    previous: syntax.Item | None = None
    for item in file.items:
        printer.start_item(item, tight=_is_head(previous) and _is_head(item))
        PRINTERS[type(item)](printer, item)
        previous = item
    return printer.finish()


def _is_head(item: syntax.Item | None) -> bool:
    return isinstance(item, syntax.Circuit | syntax.Use | syntax.Model)


class Printer:
    """Lines so far, and the comments that are still to come."""

    def __init__(self, comments: Sequence[syntax.Comment]) -> None:
        self.lines: list[str] = []
        self.comments = list(comments)

    def start_item(self, item: syntax.Node, tight: bool) -> None:
        """End the item before: its last comments, and a blank line."""
        above = self._take(lambda comment: comment.span.line < item.span.line)
        tail = [comment for comment in above if comment.span.column > 1 and self.lines]
        self.lines += [f"  {comment.text}" for comment in tail]
        if self.lines and not tight:
            self.lines.append("")
        self.lines += [comment.text for comment in above if comment not in tail]

    def row(self, node: syntax.Node, indent: int, text: str) -> None:
        """Print a row with the comments above it and the one behind it."""
        margin = "  " * indent
        inside = self._take(lambda comment: comment.span.line <= node.span.end_line)
        last = inside[-1] if inside and _is_behind(inside[-1], node) else None
        self.lines += [f"{margin}{comment.text}" for comment in inside if comment is not last]
        line = f"{margin}{text}"
        if last is not None:
            line = f"{padded(line, COMMENT_COLUMN)}{last.text}"
        self.lines += line.split("\n")

    def head(self, node: syntax.Node, line: int, indent: int, text: str) -> None:
        """Print the head of a section that goes on below `line`."""
        margin = "  " * indent
        inside = self._take(lambda comment: comment.span.line <= line)
        last = inside[-1] if inside and not inside[-1].own_line else None
        self.lines += [f"{margin}{comment.text}" for comment in inside if comment is not last]
        tail = "" if last is None else f"  {last.text}"
        self.lines.append(f"{margin}{text}{tail}")

    def finish(self) -> str:
        """Return the text, with what comments are left at its end."""
        rest = self._take(lambda comment: True)
        self.lines += [f"  {item.text}" for item in rest if item.span.column > 1]
        ending = [item.text for item in rest if item.span.column == 1]
        if ending and self.lines:
            self.lines.append("")
        return "\n".join([*self.lines, *ending]) + "\n" if self.lines or ending else ""

    def _take(self, wanted: Callable[[syntax.Comment], bool]) -> list[syntax.Comment]:
        taken = [comment for comment in self.comments if wanted(comment)]
        self.comments = [comment for comment in self.comments if not wanted(comment)]
        return taken


def _is_behind(comment: syntax.Comment, node: syntax.Node) -> bool:
    return not comment.own_line and comment.span.line == node.span.end_line


def padded(text: str, column: int) -> str:
    """Return the text with blanks up to a column, at least two."""
    width = len(text.rsplit("\n", 1)[-1])
    return text + " " * max(2, column - width)


def _names(nodes: Iterable[syntax.Identifier]) -> str:
    return ", ".join(node.name for node in nodes)


def _quoted(text: str | None) -> str:
    return "" if text is None else f' "{text}"'


def _circuit(printer: Printer, item: syntax.Circuit) -> None:
    parent = f" from {item.parent.name}@{item.parent_version}" if item.parent else ""
    printer.row(item, 0, f"circuit {item.name}@{item.version}{parent}{_quoted(item.title)}")


def _use(printer: Printer, item: syntax.Use) -> None:
    version = "" if item.version is None else f"@{item.version}"
    printer.row(item, 0, f"use {item.path}{version}")


def _model(printer: Printer, item: syntax.Model) -> None:
    printer.row(item, 0, f"model {item.block.name}")


def _when(condition: syntax.Expression | None) -> str:
    return "" if condition is None else f" when {expression(condition)}"


def _match(printer: Printer, item: syntax.Match) -> None:
    printer.head(item, item.span.line, 0, "match:")
    for row in item.rows:
        under = f" under {row.under}" if row.under else ""
        text = f"{row.format} {_names(row.names)}{under}{_when(row.condition)}"
        printer.row(row, 1, text)


def _ignore_tensors(printer: Printer, item: syntax.IgnoreTensors) -> None:
    printer.head(item, item.span.line, 0, "ignore tensors:")
    _pack(printer, item.patterns, [f'"{pattern.value}"' for pattern in item.patterns])


def _pack(printer: Printer, nodes: Sequence[syntax.Node], texts: list[str]) -> None:
    """Print items as they stood on lines, a line broken where it is too long."""
    start = 0
    while start < len(nodes):
        stop = start + 1
        line = nodes[start].span.line
        while stop < len(nodes) and nodes[stop].span.line == line:
            if len("  " + ", ".join(texts[start : stop + 1])) > WIDTH:
                break
            stop += 1
        printer.row(nodes[stop - 1], 1, ", ".join(texts[start:stop]))
        start = stop


def _from(parents: tuple[syntax.Identifier, ...]) -> str:
    return f" from {_names(parents)}" if parents else ""


def _config(printer: Printer, item: syntax.Config) -> None:
    name = f" {item.name}" if item.name else ""
    head = f"config{name}{_from(item.parents)}"
    if not item.rows:
        printer.row(item, 0, head)
        return
    printer.head(item, item.span.line, 0, f"{head}:")
    for row in item.rows:
        _config_row(printer, row)


def _config_row(printer: Printer, row: syntax.ConfigRow) -> None:
    match row:
        case syntax.Bind():
            head = f"{row.name}: {type_(row.type)} = "
            text = head + wrapped(row.value, 2 + len(head), "  ") + _quoted(row.meaning)
        case syntax.Rebind():
            head = f"{row.name} = "
            text = head + wrapped(row.value, 2 + len(head), "  ")
        case syntax.Ignore():
            text = f"ignore {_names(row.names)}"
        case syntax.Require():
            text = f'require {expression(row.condition)}, "{row.message}"'
    printer.row(row, 1, text)


def _schedule(printer: Printer, item: syntax.Schedule) -> None:
    head = f"schedule {item.index.name} in {item.axis.name}:"
    printer.head(item, item.span.line, 0, head)
    for row in item.rows:
        _config_row(printer, row)


def _map(printer: Printer, item: syntax.MapTable) -> None:
    printer.head(item, item.span.line, 0, f"map {item.name}:")
    _pack(printer, item.pairs, [pair(node) for node in item.pairs])


def _numerics(printer: Printer, item: syntax.Numerics) -> None:
    name = f" {item.name}" if item.name else ""
    head = f"numerics{name}{_from(item.parents)}"
    if not item.rows:
        printer.row(item, 0, head)
        return
    printer.head(item, item.span.line, 0, f"{head}:")
    for row in item.rows:
        selectors = ", ".join(selector.value for selector in row.selectors)
        terms = " ".join(f"{term.section}({arguments(term.arguments)})" for term in row.terms)
        printer.row(row, 1, f"{selectors}: {terms}")


def _taxonomy(printer: Printer, item: syntax.Taxonomy) -> None:
    parent = f" from {item.parent.name}@{item.parent_version}" if item.parent else ""
    printer.head(item, item.span.line, 0, f"taxonomy {item.name}@{item.version}{parent}:")
    heads = [_taxonomy_head(row) for row in item.rows]
    titled = [head for head, row in zip(heads, item.rows, strict=True) if row.title is not None]
    width = max((len(head) for head in titled), default=0)
    for head, row in zip(heads, item.rows, strict=True):
        text = head if row.title is None else f'{head:<{width}}{GAP}"{row.title}"'
        printer.row(row, 1, text)


def _taxonomy_head(row: syntax.TaxonomyRow) -> str:
    version = "" if row.version is None else f"@{row.version}"
    return f"{row.name}{version} {shape(row.shape)}"


def _block(printer: Printer, item: syntax.Block) -> None:
    parameters = ", ".join(map(_parameter, item.parameters))
    results = ", ".join(map(shape, item.results))
    head = f"block {item.name}({parameters}) -> {results}:"
    printer.head(item, item.signature.end_line, 0, head)
    if item.given:
        _section(printer, item.given[0], "given:")
        for row in item.given:
            default = "" if row.default is None else f" = {expression(row.default)}"
            printer.row(row, 2, f"{_names(row.names)}: {type_(row.type)}{default}")
    if item.renames:
        renames = (f"{row.axis.name} = {product(row.axes)}" for row in item.renames)
        printer.row(item.renames[-1], 1, f"points: {', '.join(renames)}")
    if item.parts:
        _section(printer, item.parts[0], "parts:")
        _parts(printer, item.parts, 2)
    if item.state:
        _section(printer, item.state[0], "state:")
        for slot in item.state:
            text = f"{slot.name}: {slot.kind.name}({arguments(slot.arguments)})"
            printer.row(slot, 2, f"{text}{_when(slot.condition)}")
    for statement in item.body:
        _statement(printer, statement, 1)


def _section(printer: Printer, first: syntax.Node, text: str) -> None:
    printer.head(first, first.span.line - 1, 1, text)


def _parameter(node: syntax.Parameter) -> str:
    point = "" if node.point is None else f" @ {_point(node.point)}"
    return f"{node.name}: {type_(node.type)}{point}"


def _point(node: syntax.Point) -> str:
    return node.name if node.version is None else f"{node.name}@{node.version}"


def _parts_of(printer: Printer, item: syntax.PartsOf) -> None:
    printer.head(item, item.span.line, 0, f"parts of {item.block.name}:")
    _parts(printer, item.rows, 1)


def _parts(printer: Printer, rows: tuple[syntax.PartRow, ...], indent: int) -> None:
    """Print part rows; `hf` and `gguf` stand under each other where a row is one line."""
    cells = [(_part_head(row), *_clause_cells(row.clauses)) for row in rows]
    single = [_fits(row, cell, indent) for row, cell in zip(rows, cells, strict=True)]
    widths = [
        max((len(cell[column]) for cell, one in zip(cells, single, strict=True) if one), default=0)
        for column in (0, 1)
    ]
    for row, cell, one in zip(rows, cells, single, strict=True):
        head, hf, rest = cell
        if one:
            hf = f"{hf:<{widths[1]}}{GAP}" if widths[1] else ""
            line = f"{head:<{widths[0]}}{GAP}{hf}{rest}".rstrip()
            printer.row(row, indent, line + _late_when(row.condition))
            continue
        printer.row(row, indent, _broken(row, head, indent))


def _fits(row: syntax.PartRow, cell: tuple[str, str, str], indent: int) -> bool:
    text = GAP.join(filter(None, cell)) + _late_when(row.condition)
    return 2 * indent + len(text) <= PART_WIDTH


def _late_when(condition: syntax.Expression | None) -> str:
    return "" if condition is None else f"{GAP}when {expression(condition)}"


def _broken(row: syntax.PartRow, head: str, indent: int) -> str:
    clauses = [_clause(clause) for clause in row.clauses]
    margin = "  " * (indent + 1)
    if isinstance(row, syntax.Sources):
        # A row without a constructor keeps its clauses: nothing else could stand on its line.
        line = f"{head}{GAP}{GAP.join(clauses)}"
        return line if row.condition is None else f"{line}\n{margin}{_when(row.condition).strip()}"
    lines = [GAP.join(clauses)] if len(margin + GAP.join(clauses)) <= WIDTH else clauses
    if row.condition is not None:
        lines = [*lines, _when(row.condition).strip()]
    return f"\n{margin}".join([head, *filter(None, lines)])


def _part_head(row: syntax.PartRow) -> str:
    if isinstance(row, syntax.Sources):
        return _names(row.names)
    axis = "" if row.axis is None else f"[{row.axis.name}]"
    return f"{row.name}{axis}: {' '.join(map(_choice, row.choices))}"


def _choice(node: syntax.Choice) -> str:
    made = node.constructor
    axes = "" if made.shape is None else shape(made.shape)
    given = f"({arguments(made.arguments)})" if made.arguments else ""
    text = f"{made.name}{axes}{given}"
    return text if node.condition is None else f"{text} if {expression(node.condition)} else"


def _clause_cells(clauses: tuple[syntax.Clause, ...]) -> tuple[str, str]:
    """Return the leading `hf` clauses, and the rest."""
    count = 0
    while count < len(clauses):
        clause = clauses[count]
        if not isinstance(clause, syntax.Source) or clause.format != "hf":
            break
        count += 1
    return GAP.join(map(_clause, clauses[:count])), GAP.join(map(_clause, clauses[count:]))


def _clause(node: syntax.Clause) -> str:
    if isinstance(node, syntax.Tied):
        return f"tied {node.part.name} if {expression(node.condition)}"
    names = " | ".join(f'"{name.value}"' for name in node.names)
    layout = "" if node.layout is None else f" as {shape(node.layout)}"
    steps = ", ".join(map(_transform, node.transforms))
    then = f" then {steps}" if steps else ""
    condition = "" if node.condition is None else f" if {expression(node.condition)}"
    return f"{node.format} {names}{layout}{then}{condition}"


def _transform(node: syntax.Transform) -> str:
    return f"{node.name}({arguments(node.arguments)})" if node.arguments else node.name


def _statement(printer: Printer, node: syntax.Statement, indent: int) -> None:
    margin = "  " * indent
    match node:
        case syntax.Assign():
            head = f"{_names(node.targets)} = "
            text = head + wrapped(node.value, len(margin) + len(head), margin)
            printer.row(node, indent, _with_points(text, node.points, margin))
        case syntax.Return():
            if len(node.values) == 1:
                text = "return " + wrapped(node.values[0], len(margin) + 7, margin)
            else:
                text = f"return {', '.join(map(expression, node.values))}"
            printer.row(node, indent, _with_points(text, node.points, margin))
        case syntax.If():
            _if(printer, node, indent)
        case syntax.For():
            head = f"for {node.index.name} in {node.axis.name}:"
            printer.head(node, node.span.line, indent, head)
            for statement in node.body:
                _statement(printer, statement, indent + 1)


def _if(printer: Printer, node: syntax.If, indent: int) -> None:
    for place, branch in enumerate(node.branches):
        word = "elif" if place else "if"
        head = f"{word} {expression(branch.condition)}:"
        printer.head(branch, branch.span.line, indent, head)
        for statement in branch.body:
            _statement(printer, statement, indent + 1)
    if node.otherwise is not None:
        printer.head(node, node.otherwise[0].span.line - 1, indent, "else:")
        for statement in node.otherwise:
            _statement(printer, statement, indent + 1)


def _with_points(text: str, points: tuple[syntax.Point, ...], margin: str) -> str:
    if not points:
        return text
    column = POINT_COLUMN - (len(margin) if "\n" not in text else 0)
    return f"{padded(text, column)}@ {', '.join(map(_point, points))}"


PRINTERS: dict[type, Callable[..., None]] = {
    syntax.Circuit: _circuit,
    syntax.Use: _use,
    syntax.Model: _model,
    syntax.Match: _match,
    syntax.IgnoreTensors: _ignore_tensors,
    syntax.Config: _config,
    syntax.Schedule: _schedule,
    syntax.MapTable: _map,
    syntax.Numerics: _numerics,
    syntax.Taxonomy: _taxonomy,
    syntax.Block: _block,
    syntax.PartsOf: _parts_of,
}
