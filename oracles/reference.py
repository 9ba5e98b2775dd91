"""GraphIR run in float64 over the operators' definitions: NumPy alone, no JAX.

Weights are asked for one step at a time, so a model needs little more memory than its largest
layer in float64. State grows with what is appended; positions, not places, decide what is read.
Non-goal: rounding; a low-precision contract is answered in float64.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS, kernel_arguments
from cke.kernel_registry.references import REFERENCES
from cke.schemas.graph_ir import Function, GraphIR, Op, Program
from cke.schemas.ir import Edge, Parameter, StateSlot, Step

Array = NDArray[Any]
Slot = dict[str, Array]
State = dict[str, Slot]
Weights = Mapping[str, Array]
Wanted = Callable[[str], bool]


class Run(msgspec.Struct, frozen=True):
    """What a run gives: outputs in order, the new state, and captures by checkpoint id."""

    outputs: tuple[Array, ...]
    state: State
    captures: dict[str, Array]


def run(
    graph: GraphIR,
    weights: Weights,
    tokens: Array | None,
    positions: Array | None,
    state: State | None = None,
    capture: Iterable[str] | Wanted | None = None,
    *,
    phase: str | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> Run:
    """Run one segment, int[B, T] tokens at int[B, T] positions (-1: padding), in float64.

    `weights` maps semantic names to arrays. `state` is that of an earlier run, which is not
    changed. `capture` holds checkpoint ids (`layer.3.attention.rope_query_output`), or says of an
    id whether it is wanted. `inputs` are further inputs of the program, by name.
    """
    program = _program(graph, phase)
    wanted = _wanted(capture)
    given = {"tokens": tokens, "positions": positions, **(inputs or {})}
    edges = {item.name: _input(item, given) for item in program.inputs}
    functions = {function.name: function for function in program.functions}
    run_state: State = dict(state or {})
    captures: dict[str, Array] = {}
    for step in program.steps:
        frame = _Frame(functions[step.function], step, weights, run_state, wanted, captures)
        results = frame.call([edges[name] for name in step.arguments])
        edges.update(zip(step.results, results, strict=True))
    return Run(tuple(edges[name] for name in program.outputs), run_state, captures)


def _program(graph: GraphIR, phase: str | None) -> Program:
    """The program of a phase; without one, that of whole segments."""
    programs = {program.phase: program for program in graph.programs}
    return programs[phase] if phase else programs.get("prefill", graph.programs[0])


def _wanted(capture: Iterable[str] | Wanted | None) -> Wanted:
    if callable(capture):
        return capture
    ids = frozenset(capture or ())
    return ids.__contains__


def _input(parameter: Parameter, given: Mapping[str, Array | None]) -> Array:
    value = given.get(parameter.name)
    assert value is not None, f"the program needs `{parameter.name}`"
    dtypes = {"i32": np.int32, "bool": np.bool_}
    return np.asarray(value, dtypes.get(parameter.type.dtype, np.float64))


def checkpoint_id(edge: Edge, layer: int | None) -> str:
    """The id of an edge's checkpoint: its name, its role, and the layer it is in."""
    role = edge.checkpoint.role
    name = edge.checkpoint.name if role is None else f"{edge.checkpoint.name}.{role}"
    return name if layer is None else f"layer.{layer}.{name}"


class _Frame:
    """One call of a function: its edges, and what the run shares."""

    def __init__(
        self,
        function: Function,
        step: Step,
        weights: Weights,
        state: State,
        wanted: Wanted,
        captures: dict[str, Array],
    ) -> None:
        self.function, self.step = function, step
        self.weights, self.state = weights, state
        self.wanted, self.captures = wanted, captures
        self.edges: dict[str, Array] = {}
        self.slots = {slot.name: slot for slot in function.state}
        self.aliases: dict[str, list[Edge]] = {}
        for alias in function.aliases:
            self.aliases.setdefault(alias.alias_of or "", []).append(alias)
        self.last_read = _last_reads(function)

    def call(self, arguments: list[Array]) -> list[Array]:
        """The results of the function on its arguments."""
        for parameter, value in zip(self.function.parameters, arguments, strict=True):
            self._bind(parameter.name, value)
        for index, op in enumerate(self.function.ops):
            for edge, value in zip(op.results, self._apply(op), strict=True):
                self._keep(edge, value)
                self._bind(edge.name, value)
            for name in [n for n in self.edges if self.last_read.get(n, -1) == index]:
                del self.edges[name]
        return [self.edges[name] for name in self.function.results]

    def _bind(self, name: str, value: Array) -> None:
        self.edges[name] = value
        for alias in self.aliases.get(name, ()):
            self._keep(alias, value)

    def _keep(self, edge: Edge, value: Array) -> None:
        name = checkpoint_id(edge, self.step.layer)
        if self.wanted(name):
            self.captures[name] = value

    def _apply(self, op: Op) -> tuple[Array, ...]:
        operator = OPERATORS[op.operator]
        scalars = {name: self.step.scalars[scalar] for name, scalar in op.scalars.items()}
        constants = kernel_arguments(operator, {**op.attributes, **scalars}, op.layout)
        inputs = [None if name is None else self._value(name) for name in op.inputs]
        weights = [None if name is None else self._weight(name, op) for name in op.weights]
        reference = REFERENCES[op.operator]
        if op.state is None:
            results = reference(*inputs, *weights, **constants)
            made = results if isinstance(results, tuple) else (results,)
        else:
            key = self.step.state[op.state]
            slot = self._slot(self.slots[op.state], key, inputs)
            self.state[key], *rest = reference(slot, *inputs, *weights, **constants)
            made = tuple(rest)
        return tuple(_exact(value) for value in made)

    def _value(self, name: str) -> Array:
        if name in self.edges:
            return self.edges[name]
        return _exact(self.weights[self.step.weights[name]])

    def _weight(self, name: str, op: Op) -> Array:
        weight = self.weights[self.step.weights[name]]
        return weight if op.operator == "embedding" else _exact(weight)

    def _slot(self, slot: StateSlot, key: str, inputs: list[Array | None]) -> Slot:
        """The slot with room for what comes: an empty one, or a longer cache."""
        sequence = next(value for value in inputs if value is not None)
        batch, length = sequence.shape[:2]
        found = self.state.get(key)
        if slot.kind != "cache":
            return found or _zeros(slot, batch)
        empty = {lane.name: np.zeros(_shape(lane, batch, 0)) for lane in slot.lanes}
        empty["positions"] = np.full((batch, 0), -1, np.int32)
        empty["count"] = np.zeros(batch, np.int32)
        return _grown(found or empty, length)


def _exact(value: Array) -> Array:
    """A float array in float64, exactly; anything else as it is."""
    kind = value.dtype.kind
    return value if kind in "iub" else np.asarray(value, np.float64)


def _shape(lane: Parameter, batch: int, rows: int) -> tuple[int, ...]:
    symbols = {"B": batch, "S": rows}
    return tuple(symbols[n] if isinstance(n, str) else n for n in lane.type.shape)


def _zeros(slot: StateSlot, batch: int) -> Slot:
    return {lane.name: np.zeros(_shape(lane, batch, slot.keep or 0)) for lane in slot.lanes}


def _grown(slot: Slot, length: int) -> Slot:
    """A cache with room for `length` rows; a ring that has wrapped stays as it is."""
    capacity, count = slot["positions"].shape[1], int(np.max(slot["count"], initial=0))
    missing = count + length - capacity
    if missing <= 0 or count > capacity:
        return slot
    grown = dict(slot)
    for name, value in slot.items():
        if name != "count":
            room = np.full(
                (value.shape[0], missing, *value.shape[2:]),
                -1 if name == "positions" else 0,
                value.dtype,
            )
            grown[name] = np.concatenate([value, room], axis=1)
    return grown


def _last_reads(function: Function) -> dict[str, int]:
    """The index of the last op that reads an edge; what is returned is not in it."""
    last = {edge.name: index for index, op in enumerate(function.ops) for edge in op.results}
    for index, op in enumerate(function.ops):
        last.update((name, index) for name in op.inputs if name is not None)
    return {name: index for name, index in last.items() if name not in function.results}
