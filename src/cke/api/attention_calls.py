"""Where a layer's attention reads and writes, from the manifest's calls alone."""

from typing import Any

import msgspec

from cke.attention_packet.refusal import refuse
from cke.schemas.call_ir import Call, Function, Program
from cke.schemas.ir import Step
from cke.schemas.manifest import Manifest


class AttentionCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's attention: its facts, and the captures of its Q, K, V and output.

    `keys` maps queries, keys, values and output to keys of a session's captures; `captures` are
    the checkpoints that a build must capture for them.
    """

    layer: int
    step: str
    slot: str
    storage_index: int
    lanes: tuple[str, str]
    keys: dict[str, str]
    captures: tuple[str, ...]
    scale: float
    window: int | None
    softcap: float | None
    sinks: bool
    bidirectional: bool
    shares_kv: bool


def attention_calls(manifest: Manifest, layer: int) -> AttentionCalls:
    """Find the attention of `layer` in the decode program; refuse a layer that has not one."""
    program = next((p for p in manifest.calls.programs if p.phase == "decode"), None)
    if program is None:
        refuse("CKE847", "expected a circuit with a decode phase")
    step = _step(program, layer)
    function = next(item for item in program.functions if item.name == step.function)
    attention = _one(function, "sdpa", layer)
    appends = [call for call in function.calls if call.cache and call.cache.action == "append"]
    operands = {argument.operand: argument for argument in attention.arguments}
    append = _append_of(appends, str(operands["k"].name), str(operands["v"].name))
    if append is None or append.cache is None:
        refuse("CKE847", "expected a layer with its own keys and values, got shared ones")
    edges = _edges(append, attention, str(operands["q"].name))
    names = _checkpoints(manifest, function, edges)
    attributes = attention.attributes
    slots = [slot.name for slot in program.slots]
    return AttentionCalls(
        layer=layer,
        step=f"layer.{layer}",
        slot=append.cache.slot,
        storage_index=slots.index(f"layer.{layer}.{append.cache.slot}"),
        lanes=_lanes(append),
        keys={name: f"layer.{layer}.{found}" for name, found in names.items()},
        captures=tuple(sorted(names.values())),
        scale=_scale(attention, step),
        window=_number(attributes.get("window")),
        softcap=_number(attributes.get("softcap")),
        sinks=operands["sinks"].source != "none",
        bidirectional=attributes.get("mask") != "causal",
        shares_kv=False,
    )


def _step(program: Program, layer: int) -> Step:
    layers = [step for step in program.steps if step.layer is not None]
    found = [step for step in layers if step.layer == layer]
    if len(found) != 1:
        refuse("CKE847", f"expected a layer from 0 to {len(layers) - 1}, got {layer}")
    return found[0]


def _one(function: Function, operator: str, layer: int) -> Call:
    found = [
        call
        for call in function.calls
        if any(member.operator == operator for member in call.members)
    ]
    if len(found) != 1:
        refuse("CKE847", f"expected one attention in layer {layer}, got {len(found)}")
    return found[0]


def _append_of(appends: list[Call], key: str, value: str) -> Call | None:
    """The append whose results the attention reads, as they are."""
    for call in appends:
        names = [edge.name for edge in call.results]
        if key in names and value in names:
            return call
    return None


def _lanes(append: Call) -> tuple[str, str]:
    lanes = msgspec.convert(append.attributes["lanes"], tuple[str, str])
    return lanes


def _edges(append: Call, attention: Call, query: str) -> dict[str, str]:
    rows = [argument.name for argument in append.arguments if argument.operand == "lanes"]
    if len(rows) != 2:
        refuse("CKE847", f"expected a cache of keys and values, got {len(rows)} lanes")
    context = attention.results[-1].name
    return {"queries": query, "keys": str(rows[0]), "values": str(rows[1]), "output": context}


def _checkpoints(manifest: Manifest, function: Function, edges: dict[str, str]) -> dict[str, str]:
    """The capture key of each edge of the decode function."""
    keys: dict[str, str] = {}
    for binding in manifest.checkpoints:
        if (binding.phase, binding.function) == ("decode", function.name):
            point = binding.checkpoint
            name = point.name if point.role is None else f"{point.name}.{point.role}"
            keys.setdefault(binding.edge, name)
    return {operand: keys[edge] for operand, edge in edges.items()}


def _scale(attention: Call, step: Step) -> float:
    for argument in attention.arguments:
        if argument.operand == "scale" and argument.source == "scalar":
            return float(step.scalars[str(argument.name)])
    return msgspec.convert(attention.attributes["scale"], float)


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None
