"""Dumps of transformers' `model_addition_debugger_context`: its call tree as entries.

With `use_repr=False` every tensor is a .safetensors file; with `use_repr=True` the tree holds
printed numbers, five digits of them, which are no values: such tensors give summaries only. Which
module shows which checkpoint comes from the family tables of the pytorch oracle.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cke.errors import Diagnostic, MissingInputError, Note, RejectedError
from cke.oracles.mapping import Entry
from cke.oracles.points import ModulePoint, Table
from cke.schemas.reading import Limits, read_json
from cke.schemas.trace import Summary

TREE = "_debug_tree_FULL_TENSORS.json"
LIMITS = Limits(max_bytes=1 << 30)
PRINTED = "printed by the debugger with five digits: a summary, no values"
Tree = dict[str, Any]


class Printed(msgspec.Struct, frozen=True):
    """A tensor of which the dump keeps a summary: its entry, shape, dtype and summary."""

    entry: Entry
    shape: tuple[int, ...]
    dtype: str
    summary: Summary


class DebuggerDump(msgspec.Struct, frozen=True):
    """What a dump shows: entries with values, summaries, the tokens, and the model's class."""

    entries: tuple[Entry, ...]
    printed: tuple[Printed, ...]
    tokens: Entry | str | None
    model_class: str
    dtype: str


def is_debugger_dump(folder: Path) -> bool:
    """Return whether the folder holds a debugger's call tree."""
    return any(folder.glob(f"*{TREE}"))


def read_debugger(folder: Path, table: Table) -> DebuggerDump:
    """Return the checkpoints of a dump; one that shows none is CKE746."""
    trees = sorted(folder.glob(f"*{TREE}"))
    if len(trees) != 1:
        raise MissingInputError(
            Diagnostic(
                code="CKE741",
                file=folder.name,
                message=f"expected one `*{TREE}`, got {len(trees)}",
            )
        )
    root = read_json(trees[0], LIMITS)
    nodes = {node["module_path"]: node for node in _nodes(root)}
    entries: list[Entry] = []
    printed: list[Printed] = []
    for name, layer, point, path in _places(table, nodes, root["module_path"]):
        value = _value(nodes[path], point)
        if value is None:
            continue
        entry = _entry(name, layer, point, value)
        if entry.file:
            entries.append(entry)
        elif point.chunk is None:
            printed.append(_printed(entry, value))
    if not entries and not printed:
        raise RejectedError(
            Diagnostic(
                code="CKE746",
                file=trees[0].name,
                message="expected modules that show checkpoints of this family, got none",
                notes=(Note("dump with `do_prune_layers=False, use_repr=False`", label="help"),),
            )
        )
    dtypes = {value["dtype"] for node in nodes.values() for value in _tensors(node.get("outputs"))}
    return DebuggerDump(
        entries=tuple(entries),
        printed=tuple(printed),
        tokens=_tokens(root),
        model_class=root["module_path"],
        dtype=_dtype(dtypes),
    )


def _nodes(node: Tree) -> Iterator[Tree]:
    yield node
    for child in node.get("children") or []:
        yield from _nodes(child)


def _places(
    table: Table, nodes: dict[str, Tree], root: str
) -> Iterator[tuple[str, int | None, ModulePoint, str]]:
    for name, point in table.model.items():
        path = ".".join(filter(None, (root, point.module)))
        if path in nodes:
            yield name, None, point, path
    stem = re.escape(f"{root}.{table.layers}.")
    layers = sorted({int(found[1]) for path in nodes if (found := re.match(stem + r"(\d+)", path))})
    for layer in layers:
        for name, point in table.layer.items():
            if point.split or "|" in point.module:
                continue
            path = ".".join(filter(None, (root, table.layers, str(layer), point.module)))
            if path in nodes:
                yield name, layer, point, path


def _value(node: Tree, point: ModulePoint) -> Tree | None:
    """Return the tensor that a point sees; outputs of modules with children were pruned."""
    if point.at == "input":
        inputs = node.get("inputs") or {}
        given = inputs.get("args") or [inputs.get("kwargs", {}).get("hidden_states")]
        found = given[0]
    else:
        found = node.get("outputs")
        if isinstance(found, list):
            found = found[point.item or 0]
    return found if isinstance(found, dict) and "dtype" in found else None


def _entry(name: str, layer: int | None, point: ModulePoint, value: Tree) -> Entry:
    stored = value.get("value")
    file = stored.removeprefix("./") if isinstance(stored, str) else ""
    return Entry(
        name=name, layer=layer, file=file, key="data" if file else None, axes=point.axes,
        chunk=point.chunk,
    )  # fmt: skip


def _printed(entry: Entry, value: Tree) -> Printed:
    shape = _shape(value["shape"])
    mean, std, low, high = (_number(value.get(key)) for key in ("mean", "std", "min", "max"))
    count = math.prod(shape)
    known = mean is not None and std is not None
    square = count * (mean or 0.0) ** 2 + (count - 1) * (std or 0.0) ** 2
    return Printed(
        entry=msgspec.structs.replace(entry, derivation=PRINTED),
        shape=shape,
        dtype=value["dtype"].removeprefix("torch."),
        summary=Summary(
            min=low, max=high, mean=mean, l2=math.sqrt(square) if known else None,
            nan=0 if known else count, inf=0,
        ),
    )  # fmt: skip


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _number(text: Any) -> float | None:
    found = re.fullmatch(r"tensor\(([-+.\deE]+)(?:, .*)?\)", text or "")
    return float(found[1]) if found else None


def _tokens(root: Tree) -> Entry | str | None:
    found = (root.get("inputs") or {}).get("kwargs", {}).get("input_ids")
    if not isinstance(found, dict):
        return None
    stored = found.get("value")
    if isinstance(stored, str):
        file = stored.removeprefix("./")
        return Entry(name="tokens", layer=None, file=file, key="data", axes="B T")
    return "".join(stored) if isinstance(stored, list) else None


def _tensors(value: Any) -> Iterator[Tree]:
    if isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict) and "dtype" in value:
        yield value


def _dtype(found: set[str]) -> str:
    names = {"torch.float32": "f32", "torch.bfloat16": "bf16", "torch.float16": "f16"}
    kinds = {names[item] for item in found if item in names}
    return next(iter(kinds)) if len(kinds) == 1 else "mixed"
