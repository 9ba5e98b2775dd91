"""`expand`: a circuit with all that it inherits and uses, as one file that stands alone.

Every row ends with the file and line that it comes from. Config rows are in the order in which
they were merged.
"""

from collections.abc import Mapping

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.format import PRINTERS, Printer, padded
from cke.dsl.reads import walk
from cke.dsl.syntax import NOWHERE
from cke.errors import Span

ORIGIN_COLUMN = 60


class _OriginPrinter(Printer):
    """Prints rows with their origin behind them."""

    def row(self, node: syntax.Node, indent: int, text: str) -> None:
        """Print a row and where it was written."""
        if node.span != NOWHERE:
            text = f"{padded(text, ORIGIN_COLUMN - 2 * indent)}# {node.span.file}:{node.span.line}"
        super().row(node, indent, text)

    def head(self, node: syntax.Node, line: int, indent: int, text: str) -> None:
        """Print the head of an item with its origin, that of a section without."""
        if indent == 0 and node.span != NOWHERE:
            text = f"{padded(text, ORIGIN_COLUMN)}# {node.span.file}:{node.span.line}"
        super().head(node, line, indent, text)


def expand(circuit: Circuit) -> str:
    """Return the flattened circuit as text; it parses to the same circuit."""
    printer = _OriginPrinter(())
    for item in _items(circuit):
        printer.start_item(item, tight=isinstance(item, syntax.Model))
        PRINTERS[type(item)](printer, item)
    return printer.finish()


def _items(circuit: Circuit) -> list[syntax.Item]:
    reached = reached_blocks(circuit)
    blocks = [block for name, block in circuit.blocks.items() if name in reached]
    parts = [
        syntax.PartsOf(
            block=syntax.Identifier(name=name, span=NOWHERE), rows=rows, span=rows[0].span
        )
        for name, rows in circuit.part_rows.items()
        if name in reached
    ]
    return [
        *_heads(circuit),
        *_sections(circuit),
        *circuit.maps.values(),
        *circuit.taxonomies,
        *parts,
        *blocks,
        *_ends(circuit),
    ]


def _heads(circuit: Circuit) -> list[syntax.Item]:
    head = syntax.Circuit(
        name=circuit.name,
        version=circuit.version,
        parent=None,
        parent_version=None,
        title=circuit.title or None,
        span=circuit.span,
    )
    entry = syntax.Identifier(name=circuit.entry, span=circuit.entry_span)
    heads: list[syntax.Item] = [head, syntax.Model(block=entry, span=circuit.entry_span)]
    if circuit.match:
        heads.append(syntax.Match(rows=circuit.match, span=NOWHERE))
    return heads


def _sections(circuit: Circuit) -> list[syntax.Item]:
    ignored = [
        syntax.Ignore(names=(syntax.Identifier(name=name, span=span),), span=span)
        for name, span in circuit.ignored.items()
    ]
    rows: tuple[syntax.ConfigRow, ...] = (
        *circuit.config.values(),
        *circuit.requires,
        *ignored,
    )
    sections: list[syntax.Item] = [syntax.Config(name=None, parents=(), rows=rows, span=NOWHERE)]
    if circuit.schedule_rows:
        sections.append(
            syntax.Schedule(
                index=syntax.Identifier(name=circuit.index or "", span=NOWHERE),
                axis=syntax.Identifier(name=circuit.axis or "", span=NOWHERE),
                rows=tuple(circuit.schedule_rows.values()),
                span=NOWHERE,
            )
        )
    return sections


def _ends(circuit: Circuit) -> list[syntax.Item]:
    ends: list[syntax.Item] = []
    if circuit.ignored_tensors:
        ends.append(syntax.IgnoreTensors(patterns=circuit.ignored_tensors, span=NOWHERE))
    if circuit.numerics:
        ends.append(syntax.Numerics(name=None, parents=(), rows=circuit.numerics, span=NOWHERE))
    return ends


def reached_blocks(circuit: Circuit) -> frozenset[str]:
    """Return the blocks that the entry, the config or the circuit's own files name."""
    binds = (*circuit.config.values(), *circuit.schedule_rows.values())
    pending = [circuit.entry, *_named(circuit, [bind.value for bind in binds])]
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name in reached or name not in circuit.blocks:
            continue
        reached.add(name)
        block = circuit.blocks[name]
        pending += _named(circuit, [block.parts, block.given])
    return frozenset(reached)


def _named(circuit: Circuit, nodes: list[object]) -> list[str]:
    return [
        item.name
        for node in nodes
        for item in walk(node)
        if isinstance(item, syntax.Name | syntax.Constructor) and item.name in circuit.blocks
    ]


def origins(circuit: Circuit) -> Mapping[str, Span]:
    """Return where each config name and block of the circuit was written."""
    return {
        **{name: bind.name_span for name, bind in circuit.config.items()},
        **{name: bind.name_span for name, bind in circuit.schedule_rows.items()},
        **{name: block.signature for name, block in circuit.blocks.items()},
    }
