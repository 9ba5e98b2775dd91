"""Routed models: the experts that a run selects, and runs with another model's selections.

IDs are logical ones, in the order of the router, and enter before dispatch: the generated code
calls `route`, and here `route` is told which experts to give. Gating weights are always those of
the model that runs, from its own router.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import msgspec
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.fidelity.head import PHASE
from cke.fidelity.refusal import refuse
from cke.kernel_registry.kernels.route import route
from cke.runtime.package import Package

Ids = NDArray[np.int32]
"""i32[layers, T, k] of one context."""
METHOD = "ordered_logical_topk_before_dispatch"
KERNEL = "kernel_registry/kernels/route: logical ids given to `route` before dispatch"


def package_with(package: Package, replaced: Mapping[str, Callable[..., Any]]) -> Package:
    """Return the package with functions of its generated modules replaced by name.

    The modules are executed anew, so that the package itself stays as it is.
    """
    modules = {}
    for phase, module in package.modules.items():
        assert module.__file__ is not None, "generated code is on disk"
        name = f"{module.__name__}_replaced_{id(replaced)}"
        spec = importlib.util.spec_from_file_location(name, module.__file__)
        assert spec is not None, "generated code can be imported"
        assert spec.loader is not None, "a file has a loader"
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        modules[phase] = _replace(copy, replaced, phase)
    return msgspec.structs.replace(package, modules=modules)


def _replace(
    module: ModuleType, replaced: Mapping[str, Callable[..., Any]], phase: str
) -> ModuleType:
    for name, function in replaced.items():
        if phase == PHASE and not hasattr(module, name):
            refuse("CKE881", f"the generated code does not call `{name}`")
        setattr(module, name, function)
    sys.modules.setdefault(module.__name__, module)
    return module


class RouteControl:
    """Stands for `route`: keeps every selection, and gives `forced` ones where they are set."""

    def __init__(self) -> None:
        self.forced: Ids | None = None
        self._seen: list[Ids] = []

    def begin(self, forced: Ids | None = None) -> None:
        """Start a context, natural or with the ids of every routed layer forced."""
        self.forced = forced
        self._seen = []

    def ids(self) -> Ids:
        """Return the selections of the context: i32[layers, T, k]."""
        return np.stack(self._seen)

    def __call__(self, logits: Array, choice_bias: Array | None = None, **attributes: Any) -> Any:
        """Select experts as the model does, or take the forced ones."""
        forced = None
        if self.forced is not None:
            if len(self._seen) >= len(self.forced):
                refuse("CKE881", f"the trace has {len(self.forced)} routed layers, the model more")
            forced = jax.device_put(self.forced[len(self._seen)][None])
        ids, weights = route(logits, choice_bias, forced=forced, **attributes)
        self._seen.append(np.asarray(ids, np.int32)[0])
        return ids, weights


def routed_layers(package: Package) -> list[int]:
    """Return the layers whose code selects experts, in order."""
    program = package.program(PHASE)
    routed = {
        function.name
        for function in program.functions
        if any(member.operator == "route" for call in function.calls for member in call.members)
    }
    return [
        step.layer for step in program.steps if step.function in routed and step.layer is not None
    ]


def geometry(package: Package) -> dict[str, int] | None:
    """Return how many experts there are and how many a token takes; None without routing."""
    calls = [call for function in package.program(PHASE).functions for call in function.calls]
    found = [call for call in calls if any(m.operator == "route" for m in call.members)]
    if not found:
        return None
    return {
        "num_experts": package.calls.dims["X"],
        "num_experts_per_tok": int(found[0].attributes["k"]),
    }


def trace_problems(ids: Ids, layers: int, length: int, facts: Mapping[str, int]) -> list[str]:
    """Return why a context's trace cannot be replayed: shape, range, or an expert twice."""
    expected = (layers, length, facts["num_experts_per_tok"])
    if ids.shape != expected:
        return [f"the trace expects ids {list(expected)}, got {list(ids.shape)}"]
    problems = []
    if ((ids < 0) | (ids >= facts["num_experts"])).any():
        problems.append(f"the trace holds an id outside 0 to {facts['num_experts'] - 1}")
    ordered = np.sort(ids, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        problems.append("the trace holds an expert twice in one row")
    return problems


def divergence(
    teacher: Sequence[Ids], student: Sequence[Ids], kld: Sequence[NDArray[Any]], score_from: int
) -> dict[str, Any]:
    """Return how natural routing differs, and the KLD where it held and where it flipped.

    A selection flips where the sets differ; order and gates do not count.
    """
    from cke.fidelity.statistics import mean

    flips, slots, tops = [], [], []
    for row, ours, values in zip(teacher, student, kld, strict=True):
        scored = slice(score_from, score_from + len(values))
        first, second = row[:, scored], ours[:, scored]
        flips.append((np.sort(first, -1) != np.sort(second, -1)).any(-1))
        slots.append(first != second)
        tops.append(first[..., 0] != second[..., 0])
    flipped = np.concatenate(flips, axis=1)
    values = np.concatenate(list(kld))
    position = flipped.any(0)
    held_mean = mean(values[~position]) if (~position).any() else None
    flipped_mean = mean(values[position]) if position.any() else None
    saturated = held_mean is None or flipped_mean is None
    share = float(position.mean())
    counts = flipped.sum(0)
    total = float(np.sum(values, dtype=np.float64))
    return {
        "selection_flip_rate": float(flipped.mean()),
        "slot_disagreement_rate": float(np.concatenate([s.ravel() for s in slots]).mean()),
        "top1_expert_change_rate": float(np.concatenate([t.ravel() for t in tops]).mean()),
        "position_flip_rate": share,
        "mean_kld_routing_held": held_mean,
        "mean_kld_routing_flipped": flipped_mean,
        "flipped_share_of_total": (
            float(np.sum(values[position], dtype=np.float64)) / total if total else None
        ),
        "state": ("saturated" if saturated else "measured"),
        "saturated": ("none rerouted" if share == 0 else "all rerouted") if saturated else None,
        "routing_excess_mean": (
            None
            if held_mean is None or flipped_mean is None
            else share * (flipped_mean - held_mean)
        ),
        "per_layer_flip_rate": [float(layer.mean()) for layer in flipped],
        "buckets": [
            {
                "flips": name,
                "n": int(inside.sum()),
                "mean_kld": mean(values[inside]) if inside.any() else None,
            }
            for name, inside in _flip_buckets(counts)
        ],
    }


def _flip_buckets(counts: NDArray[Any]) -> list[tuple[str, NDArray[Any]]]:
    edges = (("0", 0, 0), ("1", 1, 1), ("2-3", 2, 3), ("4-7", 4, 7), ("8+", 8, 1 << 30))
    return [(name, (counts >= low) & (counts <= high)) for name, low, high in edges]
