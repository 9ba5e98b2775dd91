"""Elaborated functions → layer kinds: functions that differ in traced floats alone are one.

A kind is named after what its layers have in common and others have not (`layer_sliding`,
`layer_moe`). A float that differs between the layers of a kind is a scalar parameter.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from cke.dsl.elaborated import Elaboration, Function, Op, Step
from cke.kernel_registry.operators import OPERATORS
from cke.schemas.ir import Parameter, TensorType, Value

SCALAR = TensorType(axes=(), shape=(), dtype="f32")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One function of the program: `scalars` by op and attribute, `steps` by their places."""

    name: str
    function: Function
    scalars: dict[str, dict[str, str]]
    parameters: tuple[Parameter, ...]
    steps: tuple[int, ...]
    values: dict[int, dict[str, float]]


def expand_schedule(elaboration: Elaboration) -> tuple[Kind, ...]:
    """Return the kinds of functions, in the order of their first steps."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    keys = [_skeleton(function) for function in elaboration.functions]
    for place, step in enumerate(elaboration.steps):
        groups[keys[step.function]].append(place)
    names = _names(elaboration, list(groups.values()))
    return tuple(
        _kind(elaboration, name, places)
        for name, places in zip(names, groups.values(), strict=True)
    )


def _skeleton(function: Function) -> bytes:
    """Return everything that must be equal for two functions to be one."""
    ops = [
        msgspec.structs.replace(
            op, attributes={k: v for k, v in op.attributes.items() if not _is_traced(op, k, v)}
        )
        for op in function.ops
    ]
    weights = [(use.name, use.type, use.tied) for use in function.weights]
    return msgspec.json.encode(
        [function.parameters, weights, function.state, ops, function.results, function.aliases]
    )


def _is_traced(op: Op, name: str, value: Value) -> bool:
    if not isinstance(value, float):
        return False
    return OPERATORS[op.operator].attribute(name).traced


def _kind(elaboration: Elaboration, name: str, places: list[int]) -> Kind:
    functions = [elaboration.functions[elaboration.steps[place].function] for place in places]
    first = functions[0]
    scalars: dict[str, dict[str, str]] = {}
    for number, op in enumerate(first.ops):
        for attribute, value in op.attributes.items():
            if not _is_traced(op, attribute, value):
                continue
            if any(each.ops[number].attributes[attribute] != value for each in functions):
                scalars.setdefault(op.id, {})[attribute] = f"{op.id}.{attribute}"
    values = {
        place: dict(_scalar_values(function, scalars))
        for place, function in zip(places, functions, strict=True)
    }
    parameters = tuple(
        Parameter(name=scalar, type=SCALAR) for own in scalars.values() for scalar in own.values()
    )
    return Kind(
        name=name,
        function=first,
        scalars=scalars,
        parameters=parameters,
        steps=tuple(places),
        values=values,
    )


def _scalar_values(
    function: Function, scalars: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, float]]:
    for op in function.ops:
        for attribute, scalar in scalars.get(op.id, {}).items():
            yield scalar, op.attributes[attribute]


def _names(elaboration: Elaboration, groups: Sequence[list[int]]) -> list[str]:
    steps = elaboration.steps
    looped = [place for place, step in enumerate(steps) if step.layer is not None]
    layers = [[steps[p] for p in group] for group in groups if steps[group[0]].layer is not None]
    layer_names = iter(_layer_names(layers))
    names = [
        next(layer_names) if steps[group[0]].layer is not None else _segment_name(group[0], looped)
        for group in groups
    ]
    return [
        name if names.count(name) == 1 else f"{name}_{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def _segment_name(place: int, looped: list[int]) -> str:
    if not looped:
        return "whole"
    if place < looped[0]:
        return "embed"
    return "head" if place > looped[-1] else "between"


def _layer_names(kinds: Sequence[Sequence[Step]]) -> list[str]:
    """Return `layer` and the schedule's words that set each kind apart; switches come last."""
    if len(kinds) == 1:
        return ["layer"]
    names = [_layer_name(own, kinds, str) for own in kinds]
    if len(set(names)) < len(names):
        names = [
            f"{name}{_layer_name(own, kinds, bool).removeprefix('layer')}"
            for name, own in zip(names, kinds, strict=True)
        ]
    return names


def _layer_name(own: Sequence[Step], kinds: Sequence[Sequence[Step]], type_: type) -> str:
    words = ["layer"]
    for name, value in own[0].row.items():
        mine = {step.row[name] for step in own if type(step.row[name]) is type_}
        every = {step.row[name] for kind in kinds for step in kind if type(step.row[name]) is type_}
        if type(value) is type_ and len(mine) == 1 and len(every) > 1:
            words.append(_word(name, value))
    return "_".join(dict.fromkeys(words))


def _word(name: str, value: Value) -> str:
    """Return what an alternative or a switch is called in a name."""
    if isinstance(value, str):
        return value
    plain = name.removeprefix("use_")
    return plain if value else f"no_{plain}"
