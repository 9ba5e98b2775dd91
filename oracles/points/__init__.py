"""Tables of where each family of transformers shows a checkpoint; data and its reader."""

import tomllib
from importlib import resources
from typing import Any

import msgspec

from cke.errors import CkeError, Diagnostic


class ModulePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint seen at a module: `item` of a tuple result, `chunk` i of n of the last axis."""

    module: str
    at: str
    axes: str
    item: int | None = None
    chunk: tuple[int, int] | None = None


class FunctionPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint seen inside a registered attention or experts function."""

    value: str
    axes: str


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every checkpoint of a family, without its layer."""

    layers: str
    attention: str
    model: dict[str, ModulePoint]
    layer: dict[str, ModulePoint]
    attention_function: dict[str, FunctionPoint]
    experts_function: dict[str, FunctionPoint] = {}


def table_for(model_type: str) -> Table:
    """Return the table of a family, by the model_type of its config; an unknown one is CKE710."""
    families = _read("families")
    if model_type not in families:
        known = ", ".join(f"`{name}`" for name in sorted(families))
        raise CkeError(
            Diagnostic(
                code="CKE710",
                message=f"no table of checkpoints for model_type `{model_type}`: expected one of "
                f"{known}",
            )
        )
    return msgspec.convert(_merged(families[model_type]), Table)


def family_names() -> tuple[str, ...]:
    """Return the model types that have a table."""
    return tuple(_read("families"))


def _merged(name: str) -> dict[str, Any]:
    own = _read(name)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    base = _merged(parent)
    for name in own.pop("without", []):
        base["layer"].pop(name)
    for name in own.pop("without_model", []):
        base["model"].pop(name)
    for key, value in own.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / f"{name}.toml").read_text("utf-8"))


class GraphPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint seen as a llama.cpp graph tensor; `pairs`: E is stored in rope pairs.

    `computed` is the dtype that the op rounds to, where that is narrower than it stores.
    """

    point: str
    axes: str
    pairs: bool = False
    computed: str | None = None


class GraphTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Checkpoints by `<name> <op>`, outside layers and within one."""

    model: dict[str, GraphPoint]
    layer: dict[str, GraphPoint]


def graph_table() -> GraphTable:
    """Return the table of llama.cpp's graph tensors."""
    return msgspec.convert(_read("llamacpp"), GraphTable)
