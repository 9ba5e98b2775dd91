"""Tables of where each family of transformers shows a checkpoint; data and its reader."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from cke.errors import CkeError, Diagnostic


class ModulePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint seen at a module: `item` of a tuple result, `chunk` i of n of the last axis.

    `split` are the sizes of unequal parts of the last axis, of which `part` is taken; with `view`
    the tensor has these axes before. `module` and `axes` may give alternatives with `|`: the first
    module that is there, the axes that fit its rank. `when` is a module without which the layer
    does not have the checkpoint.
    """

    module: str
    at: str
    axes: str
    item: int | None = None
    chunk: tuple[int, int] | None = None
    view: str | None = None
    split: tuple[str, ...] = ()
    part: int = 0
    when: str = ""


class FunctionPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint seen inside a registered attention or experts function, or in the cache.

    `split` and `part` are those of a module's point; with `shared`, all heads are one. `version` is
    that of the checkpoint in the taxonomy whose axes these are.
    """

    value: str
    axes: str
    split: tuple[str, ...] = ()
    part: int = 0
    shared: bool = False
    version: int = 1


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every checkpoint of a family, without its layer.

    `cache` are the roles of `attention.kv_append`; `experts` is the module of a layer whose
    function is registered; `sizes` are dimensions by the key of the config that has them, and
    `uneven` those of more than one size, of which an oracle states none; with
    `recurrent`, some layers keep a state in place of keys and values. An `encoder` has no state,
    and takes images with `pixels`; with `repeated`, one module is several layers in turn. A point
    of the model without a module is its result, or an `item` of that.
    """

    layers: str
    attention: str
    model: dict[str, ModulePoint]
    layer: dict[str, ModulePoint]
    attention_function: dict[str, FunctionPoint]
    cache: dict[str, FunctionPoint] = {}
    experts_function: dict[str, FunctionPoint] = {}
    experts: str = "mlp.experts"
    sizes: dict[str, str] = {}
    uneven: tuple[str, ...] = ()
    recurrent: bool = False
    encoder: bool = False
    pixels: bool = False
    repeated: bool = False


ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
"""Model types of transformers by the name of their architecture in llama.cpp."""
WINDOWED = {"gemma2", "gemma3"}
"""Architectures whose window llama.cpp computes; of the others it reads every key."""


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


def table_sizes(table: Table, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the dimensions that the table finds in a config."""
    return {name: config[key] for name, key in table.sizes.items() if key in config}


def family_names() -> tuple[str, ...]:
    """Return the model types that have a table."""
    return tuple(_read("families"))


def _merged(name: str) -> dict[str, Any]:
    own = _read(name)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    base = _merged(parent)
    for section, names in own.pop("without", {}).items():
        for name in names:
            base[section].pop(name)
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
