"""Weights on the device, as the generated functions take them: `{step: {parameter: array}}`.

A weight is read once and placed once, however many steps or phases use it; the members of a fused
weight are read, joined and let go, so that the host holds one copy of the weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax import Array

from cke.schemas.call_ir import Function, FusedWeight, Program
from cke.schemas.ir import Parameter, Step

Read = Callable[[str], "np.ndarray | Array"]
"""Returns a semantic weight in the run dtype, in its declared layout."""
Join = Callable[[Sequence[str], int], "np.ndarray | Array"]
"""Returns several semantic weights as one array, joined along an axis."""
PlacedWeights = dict[str, dict[str, Array]]
Key = tuple[tuple[str, ...], int]
"""Semantic names joined along an axis."""


def step_name(step: Step) -> str:
    """Return the key of a step's weights and state: `layer.<L>`, or its function's name."""
    return step.function if step.layer is None else f"layer.{step.layer}"


def place_weights(
    programs: Iterable[Program],
    read: Read,
    canonical: Callable[[str], str] = str,
    join: Join | None = None,
) -> dict[str, PlacedWeights]:
    """Return the weights of each phase; `canonical` maps a tied weight to the one it is.

    `join` reads the members of a fused weight straight to their places, when the reader can.
    """
    placed: dict[Key, Array] = {}
    phases: dict[str, PlacedWeights] = {}
    for program in programs:
        functions = {function.name: function for function in program.functions}
        steps: PlacedWeights = {}
        for step in program.steps:
            steps[step_name(step)] = {
                weight.name: _place(key, placed, read, join)
                for weight, key in _keys(step, functions[step.function], canonical)
            }
        phases[program.phase] = steps
    return phases


def _keys(
    step: Step, function: Function, canonical: Callable[[str], str]
) -> Iterator[tuple[Parameter, Key]]:
    fused: dict[str, FusedWeight] = {item.name: item for item in function.fused}
    for weight in function.weights:
        item = fused.get(weight.name)
        members = item.members if item else (weight.name,)
        names = tuple(canonical(step.weights[member]) for member in members)
        yield weight, (names, item.axis if item else 0)


def _place(key: Key, placed: dict[Key, Array], read: Read, join: Join | None) -> Array:
    if key not in placed:
        names, axis = key
        if len(names) == 1:
            whole = read(names[0])
        elif join is not None:
            whole = join(names, axis)
        else:
            whole = np.concatenate([read(name) for name in names], axis=axis)
        placed[key] = jax.device_put(whole)
    return placed[key]


def placed_bytes(phases: dict[str, PlacedWeights]) -> int:
    """Return the size of the placed weights in bytes, a shared one counted once."""
    arrays = {id(array): array for array in jax.tree.leaves(phases)}
    return sum(array.nbytes for array in arrays.values())
