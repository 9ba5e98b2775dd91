"""`explain_circuit`: what a circuit is, without a model: lineage, names and who supplies them."""

from cke.dsl.circuit import Circuit
from cke.dsl.expand import reached_blocks
from cke.dsl.format_expressions import expression, shape, type_
from cke.dsl.resolve import load_circuit
from cke.errors import Span


def explain_circuit(name: str) -> list[str]:
    """Return the lines: head, files, then every given of every block and what supplies it."""
    circuit = load_circuit(name)
    lines = [f"{circuit.name}@{circuit.version}: {circuit.title or 'no title'}"]
    if circuit.parents:
        lines.append(f"inherits {', '.join(circuit.parents)}")
    lines += [
        f"for {row.format} {', '.join(item.name for item in row.names)}" for row in circuit.match
    ]
    lines += [f"reads {file} {digest[:12]}" for file, digest in circuit.sources.items()]
    reached = reached_blocks(circuit)
    for block in circuit.blocks.values():
        if block.name in reached:
            lines += _block(circuit, block.name)
    return lines


def _block(circuit: Circuit, name: str) -> list[str]:
    block = circuit.blocks[name]
    parameters = ", ".join(f"{item.name}: {type_(item.type)}" for item in block.parameters)
    results = ", ".join(map(shape, block.results))
    lines = ["", f"block {name}({parameters}) -> {results}  # {_place(block.signature)}"]
    for row in block.given:
        default = "" if row.default is None else expression(row.default)
        lines += [f"  {item.name} = {_supplied(circuit, item.name, default)}" for item in row.names]
    return lines


def _supplied(circuit: Circuit, name: str, default: str) -> str:
    for binds in (circuit.schedule_rows, circuit.config):
        if name in binds:
            bind = binds[name]
            return f"{expression(bind.value)}  # {_place(bind.span)}"
    if default:
        return f"{default}  # default"
    return "the session's or the caller's"


def _place(span: Span) -> str:
    return f"{span.file}:{span.line}"
