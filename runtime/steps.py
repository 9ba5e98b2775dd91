"""The steps of a program, run in order over edges: what the drivers share.

`run_steps` is plain Python over arrays or tracers; a driver decides what is compiled.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, named_scope

from cke.runtime.placement import PlacedWeights, step_name
from cke.runtime.state import SessionState
from cke.schemas.call_ir import Function, Program
from cke.schemas.ir import Step

Callables = Mapping[str, Callable[..., Any]]
Scalars = Mapping[str, Mapping[str, Any]]
Watch = Callable[[dict[str, Array]], None]
"""Takes the captures of a step as soon as it was called, and owns them."""


class StepOutput(NamedTuple):
    """What one step of a session gives: the program's outputs, the new state, captured edges."""

    outputs: tuple[Array, ...]
    state: SessionState
    captured: dict[str, Array]


def run_steps(
    program: Program,
    callables: Callables,
    weights: PlacedWeights,
    scalars: Scalars,
    state: SessionState,
    inputs: Mapping[str, Array],
    rows: Array | None = None,
    watch: Watch | None = None,
) -> StepOutput:
    """Run every step; `rows`, i32[B], keeps one position per row for what follows the layers.

    With `watch`, captures are given to it step by step and none is returned.
    """
    functions = {function.name: function for function in program.functions}
    edges: dict[str, Array] = dict(inputs)
    after: SessionState = {}
    captured: dict[str, Array] = {}
    cut = head_start(program) if rows is not None else len(program.steps)
    for index, step in enumerate(program.steps):
        function, key = functions[step.function], step_name(step)
        if rows is not None and index == cut:
            edges = _keep_rows(program, index, functions, edges, rows)
        arguments = [edges[name] for name in step.arguments]
        with named_scope(key):
            call = _call(callables[step.function], function, key, weights, scalars, state)
            items = _as_list(call(*arguments))
        if function.capture and watch is None:
            captured |= _captured(step, items.pop())
        elif function.capture and watch is not None:
            watch(_captured(step, items.pop()))
        if function.state:
            after[key] = items.pop()
        edges |= dict(zip(step.results, items, strict=True))
    return StepOutput(tuple(edges[name] for name in program.outputs), after, captured)


def _call(
    callee: Callable[..., Any],
    function: Function,
    key: str,
    weights: PlacedWeights,
    scalars: Scalars,
    state: SessionState,
) -> Callable[..., Any]:
    slots = (state[key],) if function.state else ()
    return lambda *arguments: callee(weights[key], *slots, *arguments, **scalars.get(key, {}))


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def _captured(step: Step, edges: Mapping[str, Array]) -> dict[str, Array]:
    prefix = "" if step.layer is None else f"layer.{step.layer}."
    return {prefix + name: edge for name, edge in edges.items()}


def step_scalars(program: Program) -> dict[str, dict[str, float]]:
    """Return the scalar arguments of each step, by the name in the generated signature."""
    return {
        step_name(step): {name.replace(".", "_"): value for name, value in step.scalars.items()}
        for step in program.steps
        if step.scalars
    }


def head_start(program: Program) -> int:
    """Return the index of the first step after the layers: they treat each position alone."""
    functions = {function.name: function for function in program.functions}
    start = len(program.steps)
    while start > 1:
        step = program.steps[start - 1]
        if step.layer is not None or functions[step.function].state:
            break
        start -= 1
    return start


def _keep_rows(
    program: Program,
    start: int,
    functions: Mapping[str, Function],
    edges: Mapping[str, Array],
    rows: Array,
) -> dict[str, Array]:
    """Return the edges that the steps from `start` on read, one position per row."""
    kept = dict(edges)
    for step in program.steps[start:]:
        parameters = functions[step.function].parameters
        for name, parameter in zip(step.arguments, parameters, strict=True):
            if name in edges and parameter.type.axes[:2] == ("B", "T"):
                kept[name] = _keep(edges[name], rows)
    return kept


@jax.jit
def _keep(edge: Array, rows: Array) -> Array:
    index = rows.reshape(rows.shape + (1,) * (edge.ndim - 1))
    return jnp.take_along_axis(edge, index, axis=1)
