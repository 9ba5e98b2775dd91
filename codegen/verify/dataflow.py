"""What holds at every level: names are defined once and before use, steps fit their functions.

A level reduces its function to a `Flow`; the rules live here once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from cke.codegen import lowered_ir
from cke.codegen.checkpoints import checkpoint_key
from cke.codegen.dump import AnyFunction, AnyProgram
from cke.errors import Span
from cke.schemas import call_ir
from cke.schemas.ir import Edge, Parameter, StateSlot, Step, TensorType


class Unit(msgspec.Struct, frozen=True):
    """One op or call: what it reads, the edges it makes, its weights, scalars and slot."""

    id: str
    span: Span
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    scalars: tuple[str, ...]
    state: str | None
    results: tuple[Edge, ...]


class Flow(msgspec.Struct, frozen=True):
    """A function as units in order; `owned` are weights that its units may name."""

    function: AnyFunction
    units: tuple[Unit, ...]
    owned: tuple[str, ...]


def flow_problems(flow: Flow) -> Iterator[str]:
    """Give every broken rule of one function."""
    function = flow.function
    types = {parameter.name: parameter.type for parameter in function.parameters}
    yield from _repeated("unit", function.name, (unit.id for unit in flow.units))
    slots = {slot.name for slot in function.state}
    scalars = {scalar.name for scalar in function.scalars}
    for unit in flow.units:
        yield from _missing(unit, "reads", unit.reads, {*types, *flow.owned})
        yield from _missing(unit, "takes weight", unit.weights, flow.owned)
        yield from _missing(unit, "takes scalar", unit.scalars, scalars)
        yield from _missing(unit, "keeps", [unit.state] if unit.state else [], slots)
        for edge in unit.results:
            if edge.name in types:
                yield f"{unit.span}: `{unit.id}` defines `{edge.name}` again"
            types[edge.name] = edge.type
    yield from _function_problems(flow, types)


def _function_problems(flow: Flow, types: dict[str, TensorType]) -> Iterator[str]:
    function = flow.function
    for name in function.results:
        if name not in types:
            yield f"function `{function.name}`: result `{name}` is never defined"
    for alias in function.aliases:
        if alias.alias_of not in types:
            yield f"{alias.span}: alias `{alias.name}` of `{alias.alias_of}`, which is not defined"
        elif alias.type != types[alias.alias_of]:
            yield f"{alias.span}: alias `{alias.name}` differs in type from `{alias.alias_of}`"
        if alias.name in types:
            yield f"{alias.span}: alias `{alias.name}` defines an edge again"
    edges = [edge for unit in flow.units for edge in unit.results]
    keys = (checkpoint_key(edge) for edge in (*edges, *function.aliases))
    yield from _repeated("checkpoint", function.name, keys)
    used = {unit.state for unit in flow.units}
    for slot in function.state:
        if slot.name not in used:
            yield f"function `{function.name}`: no unit keeps slot `{slot.name}`"
    named = {name for unit in flow.units for name in (*unit.weights, *unit.reads)}
    for weight in flow.owned:
        if weight not in named:
            yield f"function `{function.name}`: weight `{weight}` is not used"


def program_problems(program: AnyProgram) -> Iterator[str]:
    """Give every broken rule of the steps of one phase."""
    functions = {function.name: function for function in program.functions}
    yield from _repeated("function", program.phase, (item.name for item in program.functions))
    types = {item.name: item.type for item in program.inputs}
    names = (
        step.function if step.layer is None else f"layer {step.layer}" for step in program.steps
    )
    yield from _repeated("step", program.phase, names)
    for step in program.steps:
        if step.function not in functions:
            yield f"{program.phase}: a step calls `{step.function}`, which is not defined"
            continue
        yield from _step_problems(program.phase, step, functions[step.function], types)
    yield from (
        f"{program.phase}: output `{name}` is never defined"
        for name in program.outputs
        if name not in types
    )
    called = {(step.function, step.layer) for step in program.steps}
    for function in program.functions:
        layers: tuple[int | None, ...] = function.layers or (None,)
        if {(function.name, layer) for layer in layers} != {
            item for item in called if item[0] == function.name
        }:
            yield f"{program.phase}: `{function.name}` is not called once per layer it names"


def _step_problems(
    phase: str, step: Step, function: AnyFunction, types: dict[str, TensorType]
) -> Iterator[str]:
    where = f"{phase}: `{step.function}`" + ("" if step.layer is None else f" at {step.layer}")
    if len(step.arguments) != len(function.parameters):
        yield f"{where} takes {len(function.parameters)} arguments, got {len(step.arguments)}"
    if len(step.results) != len(function.results):
        yield f"{where} gives {len(function.results)} results, got {len(step.results)}"
    for name, parameter in zip(step.arguments, function.parameters, strict=False):
        if name not in types:
            yield f"{where} reads `{name}` before it is defined"
        elif types[name] != parameter.type:
            yield f"{where} gives `{parameter.name}` a value of another type, `{name}`"
    own = result_types(function)
    for name, result in zip(step.results, function.results, strict=False):
        if name in types:
            yield f"{where} defines `{name}` again"
        if result in own:
            types[name] = own[result]
    yield from _names_match(where, "scalars", step.scalars, function.scalars)
    yield from _names_match(where, "state", step.state, function.state)


def _names_match(
    where: str, what: str, given: Iterable[str], declared: Iterable[Parameter | StateSlot]
) -> Iterator[str]:
    names = {item.name for item in declared}
    if set(given) != names:
        yield f"{where} expects {what} {sorted(names)}, got {sorted(given)}"


def result_types(function: AnyFunction) -> dict[str, TensorType]:
    """Return the type of every parameter and edge of a function."""
    types = {parameter.name: parameter.type for parameter in function.parameters}
    types.update((edge.name, edge.type) for edge in made_edges(function))
    return types


def made_edges(function: AnyFunction) -> Iterator[Edge]:
    """Give every edge that an op or a call of the function makes, in order."""
    if isinstance(function, call_ir.Function):
        yield from (edge for call in function.calls for edge in call.results)
    elif isinstance(function, lowered_ir.Function):
        yield from (edge for item in function.ops for edge in item.op.results)
    else:
        yield from (edge for op in function.ops for edge in op.results)


def _missing(unit: Unit, verb: str, names: Iterable[str], defined: Iterable[str]) -> Iterator[str]:
    known = set(defined)
    for name in names:
        if name not in known:
            yield f"{unit.span}: `{unit.id}` {verb} `{name}`, which is not defined before it"


def _repeated(what: str, owner: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"`{owner}` has {count} of {what} `{name}`"
