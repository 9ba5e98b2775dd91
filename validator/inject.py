"""Inject a fault: change an artefact in a scratch copy, and say what X-Ray's user then gives.

Texts are changed in a copy of the package tree without the validator and without generated code,
so that the library has no other copy of a circuit under test; tensors and configs in a copy of the
model, traces in a copy of the recording. Nothing tells X-Ray that a fault was injected, or which.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

import cke
from cke.runtime.trace_writer import DOCUMENT, body_sha256
from cke.schemas.trace import Body
from cke.validator.entries import Case, Mutation
from cke.validator.requests import request_arguments

PACKAGE = Path(cke.__file__).parent
HIDDEN = shutil.ignore_patterns("validator", "generated", "*.partial")
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
Recorded = Callable[[Path, dict[str, Any]], Path]
"""Records the oracle of a model on a request, and returns the folder of the trace."""


class Injected(msgspec.Struct, frozen=True):
    """What is run: the tree that X-Ray is imported from, and the arguments of its user."""

    source: Path
    arguments: dict[str, Any]


def inject(
    case: Case,
    model: Path,
    scratch: Path,
    recorded: Recorded,
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> Injected:
    """Make the scratch copies of a case; a change that changes nothing is a ValueError.

    `asked` takes the place of the tokens that the request has by itself.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    texts = [item for item in case.mutations if item.kind == "text"]
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": DTYPES[case.dtype],
        **request_arguments(case.request),
        **asked,
    }
    source = PACKAGE.parent
    if texts:
        source = scratch / "tree"
        shutil.copytree(PACKAGE, source / "cke", ignore=HIDDEN)
        for item in texts:
            path = source / "cke" / item.file
            path.write_text(edited(path.read_text("utf-8"), item), "utf-8")
    if any(item.file.startswith("circuits/") for item in texts):
        name = f"{case.family.partition('.')[0]}.circuit"
        arguments["circuit"] = str(source / "cke" / "circuits" / name)
    _tensors(case, model, scratch, arguments)
    _oracle(case, model, scratch, recorded, arguments)
    return Injected(source, arguments)


def edited(text: str, item: Mutation) -> str:
    """Return the text with the change made; one that finds nothing is a ValueError."""
    if item.old not in text or item.old == item.new:
        raise ValueError(f"`{item.old}` is not in {item.file}")
    return text.replace(item.old, item.new)


def _tensors(case: Case, model: Path, scratch: Path, arguments: dict[str, Any]) -> None:
    changes = [item for item in case.mutations if item.kind in ("tensor", "config")]
    if changes:
        arguments["oracle_model"] = str(model)
    for side, argument in (("subject", "model"), ("oracle", "oracle_model")):
        own = [item for item in changes if item.side == side]
        if not own:
            continue
        copy = scratch / f"model-{len(list(scratch.glob('model-*')))}"
        shutil.copytree(model, copy)
        for item in own:
            if item.kind == "tensor":
                _change_tensor(copy / "model.safetensors", item)
            else:
                _change_config(copy / "config.json", item)
        arguments[argument] = str(copy)


def _change_config(file: Path, item: Mutation) -> None:
    """Set the value at the path of a model's config."""
    config = json.loads(file.read_bytes())
    *parents, last = item.path
    target = config
    for part in parents:
        target = target[part]
    if target[last] == item.value:
        raise ValueError(f"`{last}` has that value already")
    target[last] = item.value
    file.write_text(json.dumps(config))


def _change_tensor(file: Path, item: Mutation) -> None:
    """Scale a tensor's values, draw them anew, exchange halves of its rows, or tie rows.

    `tie` makes every odd row the row before it, times a number.
    """
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])[item.tensor]
    if entry["dtype"] != "F32":
        raise ValueError(f"`{item.tensor}` is stored as {entry['dtype']}, not F32")
    start, stop = (8 + length + offset for offset in entry["data_offsets"])
    values = np.frombuffer(bytes(data[start:stop]), "<f4").reshape(entry["shape"])
    if item.operation == "scale":
        changed = (values.astype(np.float64) * float(item.new)).astype("<f4")
    elif item.operation == "tie":
        changed = values.copy()
        changed[1::2] = (values[::2].astype(np.float64) * float(item.new)).astype("<f4")
    elif item.operation == "draw":
        drawn = np.random.default_rng(0).standard_normal(values.shape)
        changed = (drawn * values.std()).astype("<f4")
    else:
        changed = np.roll(values, values.shape[0] // 2, axis=0)
    data[start:stop] = changed.tobytes()
    file.write_bytes(data)


def _oracle(
    case: Case, model: Path, scratch: Path, recorded: Recorded, arguments: dict[str, Any]
) -> None:
    name, _, kind = case.oracle.partition(".")
    arguments["oracle"] = name
    asked = {item.path[0]: item.value for item in case.mutations if item.kind == "ask"}
    if "second" in asked:
        arguments["second"] = asked["second"]
    if kind != "trace":
        return
    folder = scratch / "oracle"
    request = {key: arguments[key] for key in ("tokens", "segments", "forced", "dtype")}
    shutil.copytree(recorded(model, {**request, "oracle": name}), folder)
    arguments["oracle"] = str(folder)
    changes = [item for item in case.mutations if item.kind == "trace"]
    if changes:
        _change_trace(folder / DOCUMENT, changes)
    if not asked:
        for key in ("tokens", "segments", "forced"):
            del arguments[key]
    if "segments" in asked:
        arguments["segments"] = asked["segments"]
    if "join" in asked:
        rows = zip(arguments["tokens"], *arguments["forced"][:1], strict=True)
        arguments["tokens"] = [[*row, token] for row, token in rows]
        arguments["forced"] = arguments["forced"][1:]


def _change_trace(file: Path, changes: list[Mutation]) -> None:
    """Change the document of a trace, and state the digest that its body then has."""
    document = json.loads(file.read_bytes())
    for item in changes:
        _change_body(document["body"], item)
    body = msgspec.convert(document["body"], Body)
    document["body_sha256"] = body_sha256(body)
    file.write_text(json.dumps(document))


def _change_body(body: dict[str, Any], item: Mutation) -> None:
    if item.operation == "remove":
        kept = [row for row in body["records"] if row["checkpoint_id"] != item.record]
        if len(kept) == len(body["records"]):
            raise ValueError(f"no record of `{item.record}`")
        body["records"] = kept
        return
    targets: list[Any] = [body]
    if item.record:
        targets = [row for row in body["records"] if row["checkpoint_id"] == item.record]
        if not targets:
            raise ValueError(f"no record of `{item.record}`")
    *parents, last = item.path
    for target in targets:
        for part in parents:
            target = target[part]
        target[last] = target[last] + item.value if item.operation == "add" else item.value
