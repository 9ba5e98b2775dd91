"""Candidates: a model's linear weights in a weight-only format, written to a folder and loaded.

The folder holds `candidate.json`, `weights.safetensors` and the generated package, so that it
loads without the model that it was made of. What a weight's parameters are, and whether each was
used as exported, is recorded while it loads.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from cke.errors.files import folder_atomically
from cke.fidelity.candidate_formats import Format, format_named
from cke.fidelity.digests import weights_sha256
from cke.fidelity.head import PHASE
from cke.fidelity.refusal import refuse
from cke.fidelity.routing import geometry
from cke.fidelity.settings import Mode
from cke.fidelity.subject import Identity, Inspection, Subject
from cke.fidelity.suite import pretty
from cke.runtime.package import Package, load_package
from cke.runtime.placement import place_weights
from cke.schemas.call_ir import Program
from cke.schemas.reading import convert, read_json

Array = NDArray[Any]
FusedScale = Literal["own", "max"]
SHARD = "weights.safetensors"
DESCRIPTION = "candidate.json"
FLOATS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
LINEAR = ("linear", "expert_linear")


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one semantic weight is stored: its shape, and the format of its rows, None for floats."""

    shape: tuple[int, ...]
    contracted: int
    format: str | None


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a candidate's folder holds; `tied` maps a weight to the one whose values it has."""

    kind: str
    format: str
    head_included: bool
    made_from_weights_sha256: str
    config_sha256: str
    tensors: dict[str, Tensor]
    tied: dict[str, str]


def linear_weights(program: Program, *, head: bool) -> dict[str, tuple[str, int]]:
    """Return the semantic weights of linear layers: name → operator and contracted axes.

    The head's are left out unless `head`.
    """
    functions = {function.name: function for function in program.functions}
    found: dict[str, tuple[str, int]] = {}
    for step in program.steps:
        if step.layer is None and not head:
            continue
        function = functions[step.function]
        fused = {item.name: item.members for item in function.fused}
        for call in function.calls:
            operators = [m.operator for m in call.members if m.operator in LINEAR]
            names = [
                a.name for a in call.arguments if a.source == "weight" and a.operand == "weight"
            ]
            if operators and names:
                contract = int(call.attributes.get("contract", 1))
                for member in fused.get(str(names[0]), (str(names[0]),)):
                    found[step.weights[member]] = (operators[0], contract)
    return found


def write_candidate(
    package: Package,
    read: Callable[[str], Any],
    canonical: Callable[[str], str],
    identity: Identity,
    format: str,
    out: Path,
    *,
    head: bool = False,
) -> Description:
    """Write a candidate of the model to the new folder `out`; every other weight as it is."""
    chosen = format_named(format)
    program = package.program(PHASE)
    linear = linear_weights(program, head=head)
    names = sorted({name for step in program.steps for name in step.weights.values()})
    tied = {name: canonical(name) for name in names if canonical(name) != name}
    targets = {canonical(name): found for name, found in linear.items()}
    arrays: dict[str, Array] = {}
    tensors: dict[str, Tensor] = {}
    for name in sorted({canonical(name) for name in names}):
        array = np.asarray(read(name))
        contract = targets[name][1] if name in targets else 0
        tensors[name] = Tensor(
            shape=array.shape, contracted=contract, format=chosen.name if contract else None
        )
        arrays |= _stored(name, array, chosen if contract else None, contract)
    description = Description(
        kind="cke-fidelity-candidate",
        format=chosen.name,
        head_included=head,
        made_from_weights_sha256=identity.weights_sha256,
        config_sha256=identity.config_sha256,
        tensors=tensors,
        tied=tied,
    )
    assert package.folder is not None, "a package of a model is on disk"
    with folder_atomically(out) as folder:
        folder.joinpath("package").mkdir()
        for path in sorted(package.folder.glob("*")):
            if path.is_file():
                folder.joinpath("package", path.name).write_bytes(path.read_bytes())
        save_file(arrays, folder / SHARD)
        folder.joinpath(DESCRIPTION).write_bytes(pretty(description))
    return description


def _stored(name: str, array: Array, format: Format | None, contract: int) -> dict[str, Array]:
    if format is None:
        return {f"{name}|values": np.ascontiguousarray(array)}
    rows = array.astype(np.float32).reshape(-1, math.prod(array.shape[-contract:]))
    parts = format.encode(rows, format.group)
    return {f"{name}|{part}": np.ascontiguousarray(values) for part, values in parts.items()}


class Recorder:
    """What loading a candidate finds: each linear layer's parameters, and what replaced them."""

    def __init__(self, linear: Mapping[str, tuple[str, int]]) -> None:
        self.linear = linear
        self.layers: dict[str, dict[str, Any]] = {}
        self.replaced: dict[str, list[tuple[int, float]]] = {}

    def used(self, name: str, format: str | None, parameters: Sequence[str]) -> None:
        """Record a weight that was read as exported."""
        if name in self.linear:
            self.layers[name] = {
                "name": name,
                "operator": self.linear[name][0],
                "format": format or "float",
                "parameters": list(parameters),
                "as_exported": True,
            }

    def substituted(self, names: Sequence[str], parameter: str, spread: float) -> None:
        """Record that one value stands for this parameter of several weights."""
        for name in names:
            self.layers[name] = {**self.layers[name], "as_exported": False}
        self.replaced.setdefault(parameter, []).append((len(names), spread))

    def inspection(self, digest: str, routed: bool) -> Inspection:
        """Return the record of the load."""
        substitutions = [
            {
                "parameter": parameter,
                "kind": "one scale for all members of a fused layer",
                "replacement": "the largest of the members' scales",
                "affected_layers": sum(count for count, _ in found),
                "scored_layers": len(self.layers),
                "worst_spread": max(spread for _, spread in found),
            }
            for parameter, found in sorted(self.replaced.items())
        ]
        return {
            "student_weights_sha256": digest,
            "recorded": "while_loading",
            "walked": True,
            "routed": routed,
            "quantized": any(layer["format"] != "float" for layer in self.layers.values()),
            "scored_layers": len(self.layers),
            "layers": [self.layers[name] for name in sorted(self.layers)],
            "substitutions": substitutions,
        }


def load_candidate(
    folder: Path, mode: Mode = "eager", *, fused_scale: FusedScale = "own"
) -> Subject:
    """Return the candidate of a folder, with the inspection recorded while it loads.

    `fused_scale` is `max` for a kernel that holds one global scale per fused layer; that is a
    substitution, and is recorded.
    """
    description = read_description(folder)
    package = load_package(folder / "package")
    digest = weights_sha256([folder / SHARD])
    stored = load_file(folder / SHARD)
    if weights_sha256([folder / SHARD]) != digest:
        refuse("CKE878", "the weights changed while they were read", file=folder.name)
    program = package.program(PHASE)
    recorder = Recorder(linear_weights(program, head=True))
    reader = Reader(description, stored, package.calls.dtype, recorder)
    placed = place_weights(
        [program],
        reader.read,
        lambda name: description.tied.get(name, name),
        reader.joined if fused_scale == "max" else None,
    )
    routing = geometry(package)
    identity = Identity(
        name=folder.name,
        weights_sha256=digest,
        config_sha256=description.config_sha256,
        routing=routing,
    )
    inspection = recorder.inspection(digest, routing is not None)
    return Subject(package, placed[PHASE], identity, inspection, mode)


def read_description(folder: Path) -> Description:
    """Return what a candidate's folder says of itself."""
    path = folder / DESCRIPTION
    return convert(read_json(path), Description, path)


class Reader:
    """Reads semantic weights of a candidate in the run dtype."""

    def __init__(
        self, description: Description, stored: dict[str, Array], dtype: str, recorder: Recorder
    ) -> None:
        self.description = description
        self.stored = stored
        self.dtype = FLOATS[dtype]
        self.recorder = recorder

    def read(self, name: str) -> Array:
        """Return a weight from its parameters as they were exported."""
        tensor, parts = self._parts(name)
        self.recorder.used(name, tensor.format, sorted(parts))
        return self._values(name, tensor, parts)

    def joined(self, names: Sequence[str], axis: int) -> Array:
        """Return weights joined, with one global scale, the largest, where each has its own."""
        found = {name: self._parts(name) for name in names}
        for name, (tensor, parts) in found.items():
            self.recorder.used(name, tensor.format, sorted(parts))
        scales = [parts.get("global_scale") for _, parts in found.values()]
        if all(scale is not None for scale in scales):
            values = [float(scale[0]) for scale in scales if scale is not None]
            spread = max(values) / min(values)
            if spread != 1.0:
                self.recorder.substituted(names, "weight_global_scale", spread)
            shared = np.array([max(values)], np.float32)
            found = {n: (t, {**p, "global_scale": shared}) for n, (t, p) in found.items()}
        whole = [self._values(name, *item) for name, item in found.items()]
        return np.concatenate(whole, axis=axis)

    def _parts(self, name: str) -> tuple[Tensor, dict[str, Array]]:
        tensor = self.description.tensors.get(name)
        prefix = f"{name}|"
        parts = {k.removeprefix(prefix): v for k, v in self.stored.items() if k.startswith(prefix)}
        if tensor is None or not parts:
            refuse("CKE878", f"the candidate has no weight `{name}`")
        return tensor, parts

    def _values(self, name: str, tensor: Tensor, parts: dict[str, Array]) -> Array:
        if tensor.format is None:
            return parts["values"].astype(self.dtype).reshape(tensor.shape)
        rows = format_named(tensor.format).decode(parts)
        return rows.reshape(tensor.shape).astype(self.dtype)
