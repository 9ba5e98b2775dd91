"""Values against declared types, and the names that are alternatives somewhere in a circuit."""

from collections.abc import Callable

from cke.dsl import syntax
from cke.dsl.circuit import Circuit
from cke.dsl.evaluate import Value, fail, is_number, shown
from cke.errors import Note, Span
from cke.kernel_registry.operators import OPERATORS, SCALINGS, SPELLINGS

DTYPES = ("f32", "bf16", "f16", "f64", "i32", "model", "storage")
POSITIVE_LIMIT = 1 << 40


def _is_integer(value: Value) -> bool:
    return is_number(value) and value == int(value)


def _is_dim(value: Value) -> bool:
    return _is_integer(value) and 0 <= value <= POSITIVE_LIMIT


KINDS: dict[str, Callable[[Value], bool]] = {
    "float": is_number,
    "int": _is_integer,
    "dim": _is_dim,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "block": lambda value: isinstance(value, str),
    "list": lambda value: isinstance(value, list),
    "table": lambda value: isinstance(value, dict),
    "scaling": lambda value: (
        value is None or (isinstance(value, dict) and value.get("kind") in SCALINGS)
    ),
}


def as_declared(name: str, value: Value, type_: syntax.Type, span: Span) -> Value:
    """Return the value in its declared kind; CKE231 when the type does not admit it."""
    for atom in type_.alternatives:
        kind = atom.name or "float"
        if value is None and (atom.optional or kind in ("none", "scaling")):
            return None
        if kind in KINDS and KINDS[kind](value):
            return _converted(kind, value)
        if kind == value and kind not in KINDS:
            return value
    expected = " | ".join(_spelled(atom) for atom in type_.alternatives)
    raise fail(
        "CKE231", span, f"`{name}` expects {expected}, got `{shown(value)}`", *_hint(value, type_)
    )


def _converted(kind: str, value: Value) -> Value:
    if kind == "float":
        return float(value)
    return int(value) if kind in ("int", "dim") else value


def _spelled(atom: syntax.TypeAtom) -> str:
    return f"{atom.name or 'a tensor'}{'?' if atom.optional else ''}"


def _hint(value: Value, type_: syntax.Type) -> tuple[Note, ...]:
    """Return how an external spelling is written here, when the type has that alternative."""
    names = {atom.name for atom in type_.alternatives}
    if value in ("neox", "norm") and "split_half" in names:
        text = "ggml's NEOX order is `split_half`, its NORM order is `interleaved`"
        return (Note(text, label="help"),)
    for spellings in SPELLINGS.values():
        if isinstance(value, str) and spellings.get(value) in names:
            return (Note(f"`{value}` is spelled `{spellings[value]}` here", label="help"),)
    return ()


def alternatives(circuit: Circuit) -> frozenset[str]:
    """Return every name that stands for itself: alternatives, operators, blocks, dtypes."""
    names: set[str] = {*OPERATORS, *circuit.blocks, *DTYPES, *SCALINGS, *own_alternatives(circuit)}
    tables = [operator.attributes for operator in OPERATORS.values()]
    for attributes in (*tables, *SCALINGS.values()):
        for attribute in attributes:
            names.update(item for item in attribute.alternatives if isinstance(item, str))
    return frozenset(names)


def own_alternatives(circuit: Circuit) -> frozenset[str]:
    """Return the alternatives that the circuit's declared types list."""
    types = [bind.type for bind in (*circuit.config.values(), *circuit.schedule_rows.values())]
    types += [row.type for block in circuit.blocks.values() for row in block.given]
    atoms = (atom.name for type_ in types for atom in type_.alternatives if atom.shape is None)
    return frozenset(name for name in atoms if name and name not in KINDS and name != "none")
