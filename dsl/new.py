"""`new_circuit`: a first circuit for a config, from the library circuit that reads most of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cke.dsl.accounting import unread_keys
from cke.dsl.circuit import Circuit
from cke.dsl.library import library_circuits
from cke.dsl.match import family_names
from cke.dsl.model import OpenModel
from cke.dsl.reads import read_keys
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.model_source import ModelSource

KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list?", dict: "table?"}


class Nearest(msgspec.Struct, frozen=True):
    """A circuit, and the keys of a config that it does not read."""

    circuit: Circuit
    unread: tuple[str, ...]


def new_circuit(source: ModelSource, name: str | None = None) -> str:
    """Return the text of a circuit that inherits from the nearest one."""
    if not any(isinstance(value, int | float | str) for value in source.config.values()):
        note = Note("give the config.json of a model, or a GGUF file", label="help")
        message = "expected a model's config, got one without values"
        raise CkeError(Diagnostic(code="CKE313", message=message, file=source.name, notes=(note,)))
    nearest = nearest_circuit(source)
    families = family_names(source)
    parent = nearest.circuit
    lines = [
        f"# `{parent.name}` reads most of this config; `cke expand {parent.name}` shows all of it.",
        f"circuit {name or _circuit_name(families)}@1 from {parent.name}@{parent.version} "
        f'"{_title(families)}"',
        "",
        *_match(source.format, families),
        *_unread(nearest, source.config),
    ]
    return "\n".join(lines) + "\n"


def nearest_circuit(source: ModelSource) -> Nearest:
    """Return the library circuit that leaves the fewest keys unread, and reads the most."""
    model = OpenModel(source)
    ranked = []
    for name in library_circuits():
        circuit = load_circuit(name)
        unread = tuple(_key(item) for item in unread_keys(circuit, model))
        ranked.append((len(unread), _missing(circuit, model), len(circuit.parents), name, unread))
    _, _, _, name, unread = min(ranked)
    return Nearest(load_circuit(name), unread)


def _missing(circuit: Circuit, model: OpenModel) -> int:
    """Count the keys that the circuit reads and the config lacks."""
    paths = read_keys([bind.value for bind in circuit.config.values()])
    return sum(
        path.path[0] not in model.root for path in paths if path.format == model.format == "hf"
    )


def _key(problem: Diagnostic) -> str:
    return (problem.path or "").removeprefix("$.")


def _circuit_name(families: Sequence[str]) -> str:
    stem = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", families[0]) if families else "new"
    return re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem)).lower() or "new"


def _title(families: Sequence[str]) -> str:
    return f"{families[0] if families else 'A new family'}: say here what is new"


def _match(format: str, families: Sequence[str]) -> list[str]:
    names = [name for name in families if re.fullmatch(r"[A-Za-z_]\w*", name)]
    return ["match:", f"  {format} {', '.join(names)}", ""] if names else []


def _unread(nearest: Nearest, config: Mapping[str, Any]) -> list[str]:
    parent = nearest.circuit
    if not nearest.unread:
        return [f"# `{parent.name}` reads or ignores every key of this config."]
    return [
        f"# `{parent.name}` does not read these keys. Bind each under `config:` where it changes",
        "# the numbers, or put it in an `ignore` row where it does not.",
        "# config:",
        *(f"#   {_row(key, config)}" for key in nearest.unread),
        f"#   ignore {', '.join(nearest.unread)}",
    ]


def _row(key: str, config: Mapping[str, Any]) -> str:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    kind = KINDS.get(type(value), "int?")
    return f"{key.split('.')[-1]}: {kind} = hf.{key}   # {_shown(value)} in this config"


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
