"""`check_circuit`: everything that can be said of a circuit without a config, all at once.

Names, rows that reach nothing, layouts that cannot split, the words of numerics; then, when the
names are right, shapes and points of every block, on both sides of every `if`.
"""

from collections.abc import Iterator, Mapping

from cke.dsl import syntax
from cke.dsl.accounting import ignored_and_read
from cke.dsl.circuit import Circuit
from cke.dsl.elaborate import check_blocks
from cke.dsl.evaluate import FUNCTIONS
from cke.dsl.merge import part_names
from cke.dsl.names import GLOSSARY, did_you_mean
from cke.dsl.reads import read_names, walk
from cke.dsl.resolve import with_source
from cke.dsl.values import alternatives, own_alternatives
from cke.errors import CkeError, Diagnostic, Note, Span
from cke.kernel_registry.contract_files import AMBIGUOUS, SECTIONS
from cke.kernel_registry.operators import OPERATORS

RUNTIME = ("positions", "valid")
IMPLICIT_AXES = ("B", "T", "S")
ROLES = ("normalized", "output", "table", "scores", "probabilities", "context")


class CheckErrors(CkeError):
    """What is wrong with a circuit whatever the config says."""


def check_circuit(circuit: Circuit) -> None:
    """Raise CheckErrors with everything that is wrong with a circuit."""
    problems = [
        *_shadows(circuit),
        *_unexplained_dims(circuit),
        *_unread_rows(circuit),
        *ignored_and_read(circuit),
        *_layouts(circuit),
        *_numerics(circuit),
        *_unknown_names(circuit),
    ]
    if not problems:
        problems = check_blocks(circuit)
    if problems:
        raise CheckErrors(with_source(problems, circuit.files))


def _shadows(circuit: Circuit) -> Iterator[Diagnostic]:
    """An edge, part, slot or block named as an operator; a config name that is an alternative."""
    for block in circuit.blocks.values():
        for kind, name, span in _definitions(block):
            if name in OPERATORS:
                yield _shadow(f"{kind} `{name}` has the name of an operator", span)
    words = own_alternatives(circuit)
    for bind in (*circuit.config.values(), *circuit.schedule_rows.values()):
        if bind.name in words:
            yield _shadow(f"`{bind.name}` has the name of an alternative", bind.name_span)


def _shadow(message: str, span: Span) -> Diagnostic:
    return Diagnostic(
        code="CKE238", message=message, span=span, notes=(Note("rename it", label="help"),)
    )


def _definitions(block: syntax.Block) -> Iterator[tuple[str, str, Span]]:
    yield "block", block.name, block.signature
    for parameter in block.parameters:
        yield "parameter", parameter.name, parameter.span
    for row in block.parts:
        if isinstance(row, syntax.Part):
            yield "part", row.name, row.name_span
    for slot in block.state:
        yield "state", slot.name, slot.span
    for target in _targets(block):
        yield "edge", target.name, target.span


def _targets(block: syntax.Block) -> Iterator[syntax.Identifier]:
    for node in walk(block.body):
        if isinstance(node, syntax.Assign):
            yield from node.targets


def _unexplained_dims(circuit: Circuit) -> Iterator[Diagnostic]:
    for bind in circuit.config.values():
        is_dim = bind.type.alternatives[0].name == "dim"
        if is_dim and bind.name not in GLOSSARY and bind.meaning is None:
            yield Diagnostic(
                code="CKE237",
                message=f"dim `{bind.name}` is not in the glossary and has no meaning",
                span=bind.name_span,
                notes=(Note('say what it counts: `N: dim = … "state heads"`', label="help"),),
            )


def _unread_rows(circuit: Circuit) -> Iterator[Diagnostic]:
    """A row of the circuit itself that no row and no block reads."""
    read = _names_read(circuit)
    rows = (*circuit.config.values(), *circuit.schedule_rows.values())
    for bind in rows:
        if bind.span.file in circuit.own_files and bind.name not in read:
            yield Diagnostic(
                code="CKE225",
                message=f"`{bind.name}` is bound and nothing reads it",
                span=bind.name_span,
                notes=did_you_mean(bind.name, {name: None for name in sorted(read)}),
            )


def _names_read(circuit: Circuit) -> set[str]:
    values = [bind.value for bind in circuit.config.values()]
    values += [bind.value for bind in circuit.schedule_rows.values()]
    values += [row.condition for row in circuit.requires]
    read = read_names(values) | {circuit.axis or ""}
    for block in circuit.blocks.values():
        read |= {name.name for row in block.given for name in row.names}
        read |= read_names([block]) | _axes(block)
    for rows in circuit.part_rows.values():
        read |= read_names([rows]) | _axes(rows) | _looped(rows)
    for block in circuit.blocks.values():
        read |= _looped(block.parts)
    return read


def _axes(node: object) -> set[str]:
    names: set[str] = set()
    for item in walk(node):
        if isinstance(item, syntax.AxisName | syntax.AxisPairs):
            names.add(item.name)
        elif isinstance(item, syntax.AxisFraction):
            names |= {item.name, str(item.divisor)}
        elif isinstance(item, syntax.For):
            names.add(item.axis.name)
        elif isinstance(item, syntax.Part) and item.axis is not None:
            names.add(item.axis.name)
    return names


def _looped(rows: tuple[syntax.PartRow, ...]) -> set[str]:
    """Return the names in braces of tensor names."""
    found: set[str] = set()
    for node in walk(rows):
        if isinstance(node, syntax.Text):
            found |= {piece.split("}")[0] for piece in node.value.split("{")[1:]}
    return found


def _layouts(circuit: Circuit) -> Iterator[Diagnostic]:
    """Several names before one source need a sum of as many terms, or a literal of that size."""
    rows = [row for block in circuit.blocks.values() for row in block.parts]
    rows += [row for group in circuit.part_rows.values() for row in group]
    for row in rows:
        names = part_names(row)
        for clause in row.clauses if len(names) > 1 else ():
            if isinstance(clause, syntax.Source) and not _splits(clause.layout, len(names)):
                shape = clause.layout
                yield Diagnostic(
                    code="CKE243",
                    message=f"split of {len(names)} names needs a sum of {len(names)} terms or a "
                    f"literal {len(names)}, got {_shown(circuit, shape)}",
                    span=clause.span if shape is None else shape.span,
                )


def _splits(shape: syntax.Shape | None, count: int) -> bool:
    if shape is None:
        return False
    for node in walk(shape):
        if isinstance(node, syntax.Dimension | syntax.AxisGroup) and len(node.terms) == count:
            return True
        if isinstance(node, syntax.AxisLiteral) and node.size == count:
            return True
    return False


def _shown(circuit: Circuit, shape: syntax.Shape | None) -> str:
    if shape is None:
        return "no layout"
    span = shape.span
    return circuit.line(span)[span.column - 1 : span.end_column - 1]


def _numerics(circuit: Circuit) -> Iterator[Diagnostic]:
    results = {result for row in OPERATORS.values() for result in (*row.interior, *ROLES)}
    for row in circuit.numerics:
        for term in row.terms:
            yield from _term(term, results)
        for selector in row.selectors:
            yield from _selector(selector, circuit)


def _term(term: syntax.Term, results: set[str]) -> Iterator[Diagnostic]:
    if term.section not in SECTIONS:
        yield _vocabulary(
            f"numerics have no section `{term.section}`", term.span, ", ".join(SECTIONS)
        )
        return
    for argument in term.arguments:
        if argument.name not in SECTIONS[term.section]:
            message = f"`{term.section}` has no field `{argument.name}`"
            yield _vocabulary(message, argument.span, ", ".join(sorted(SECTIONS[term.section])))
        for node in walk(argument.value):
            if isinstance(node, syntax.Name) and node.name in AMBIGUOUS:
                message = f"`{node.name}` names no contract"
                yield _vocabulary(message, node.span, "a dtype such as f32, or `model`")


def _vocabulary(message: str, span: Span, known: str) -> Diagnostic:
    return Diagnostic(
        code="CKE241",
        message=message,
        span=span,
        notes=(Note(f"expected {known}", label="help"),),
    )


def _selector(selector: syntax.Text, circuit: Circuit) -> Iterator[Diagnostic]:
    head, _, rest = selector.value.partition(".")
    if head == "*" or head in OPERATORS:
        return
    if head in circuit.blocks and (not rest or rest in _part_names(circuit.blocks[head])):
        return
    if any(head in _part_names(block) for block in circuit.blocks.values()):
        return
    places = {name: None for name in (*OPERATORS, *circuit.blocks)}
    yield Diagnostic(
        code="CKE241",
        message=f"`{selector.value}` selects nothing: it is no operator and no part",
        span=selector.span,
        notes=did_you_mean(head, places),
    )


def _part_names(block: syntax.Block) -> set[str]:
    return {row.name for row in block.parts if isinstance(row, syntax.Part)}


def _unknown_names(circuit: Circuit) -> Iterator[Diagnostic]:
    known = alternatives(circuit)
    dims = {*circuit.config, *circuit.schedule_rows, *IMPLICIT_AXES, *RUNTIME, "source"}
    for block in circuit.blocks.values():
        own: dict[str, Span | None] = {name: span for _, name, span in _definitions(block)}
        own |= {name.name: name.span for row in block.given for name in row.names}
        own |= _indices(block)
        axes = _axes(block)
        for node in walk((block.given, block.parts, block.state, block.body)):
            if not isinstance(node, syntax.Name):
                continue
            if node.name in own or node.name in known or node.name in dims or node.name in axes:
                continue
            if node.name not in FUNCTIONS:
                yield _unknown(node, own, dims)


def _indices(block: syntax.Block) -> Mapping[str, Span | None]:
    return {
        node.index.name: node.index.span
        for node in walk(block.body)
        if isinstance(node, syntax.For)
    }


def _unknown(node: syntax.Name, own: Mapping[str, Span | None], dims: set[str]) -> Diagnostic:
    places: dict[str, Span | None] = {**{name: None for name in sorted(dims)}, **own}
    return Diagnostic(
        code="CKE230",
        message=f"unknown name `{node.name}`",
        span=node.span,
        notes=did_you_mean(node.name, places),
    )
