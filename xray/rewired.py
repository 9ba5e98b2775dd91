"""Counterfactuals of last resort: what was left out before an op, two ops exchanged, a later edge.

They are tried when no likelier change closes the gap, since they are many.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.references import REFERENCES
from cke.schemas.graph_ir import Op
from cke.xray.candidates import ACTIVATIONS, PAIRWISE, Candidate, read_instead
from cke.xray.graph import ProgramGraph, Site
from cke.xray.local import Bench, Judged
from cke.xray.missing import lost_ropes
from cke.xray.replay import Change

Array = NDArray[Any]


def lost_activations(step: int, op: Op) -> Iterator[Candidate]:
    """Yield the activations that may have been left out before an op, on one operand."""
    if op.operator not in ("add", "multiply", "linear"):
        return
    for place in range(len(op.inputs)):
        for name in ACTIVATIONS:
            yield Candidate(
                change=Change(step, op.id, before={place: REFERENCES[name]}),
                kind="insertion",
                what=f"{name} of operand {place}",
                old=None,
                new=name,
                origin="operator table",
            )


def regrouped(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    """Yield an activation and the sum or product next to it in the other order.

    `act(a) * b` in place of `act(a * b)`, and back: two ops that one line of a circuit makes.
    """
    graph = bench.graph(judged.segment)
    makers = {edge.name: other for other in graph.function(step).ops for edge in other.results}
    for place, name in enumerate(op.inputs):
        inner = makers.get(name or "")
        if inner is None or None in inner.inputs:
            continue
        if op.operator in ACTIVATIONS and inner.operator in PAIRWISE:
            pairs = _one_activated(bench, judged, step, op, inner)
        elif op.operator in PAIRWISE and inner.operator in ACTIVATIONS:
            pairs = _whole_activated(graph, step, op, place, inner)
        else:
            continue
        old = _written(op, place, inner)
        for change, new in pairs:
            yield Candidate(
                change=change,
                kind="operand",
                what="the order of two ops",
                old=old,
                new=new,
                origin="two ops exchanged",
            )


def _one_activated(
    bench: Bench, judged: Judged, step: int, op: Op, inner: Op
) -> Iterator[tuple[Change, str]]:
    """Yield `f(a) o b` and `a o f(b)` of `f(a o b)`."""
    graph = bench.graph(judged.segment)
    combine = REFERENCES[inner.operator]
    for turned in (0, 1):
        site, other = (Site(step, inner.inputs[at] or "") for at in (turned, 1 - turned))
        beside = bench.oracle.value(graph, judged.segment, graph.origin(other))
        if beside is None:
            continue

        def after(
            results: tuple[Array, ...], beside: Array = beside, turned: int = turned
        ) -> tuple[Array, ...]:
            return (combine(*((results[0], beside) if turned == 0 else (beside, results[0]))),)

        parts = [str(name) for name in inner.inputs]
        parts[turned] = f"{op.operator}({parts[turned]})"
        change = Change(step, op.id, inputs={0: graph.origin(site)}, after=after)
        yield change, f"{inner.operator}({', '.join(parts)})"


def _whole_activated(
    graph: ProgramGraph, step: int, op: Op, place: int, inner: Op
) -> Iterator[tuple[Change, str]]:
    """Yield `f(a o b)` of `f(a) o b`."""
    activate = REFERENCES[inner.operator]
    parts = [str(name) for name in op.inputs]
    parts[place] = str(inner.inputs[0])
    change = Change(
        step,
        op.id,
        inputs={place: graph.origin(Site(step, parts[place]))},
        after=lambda results: (activate(results[0]),),
    )
    yield change, f"{inner.operator}({op.operator}({', '.join(parts)}))"


def _written(op: Op, place: int, inner: Op) -> str:
    parts = [str(name) for name in op.inputs]
    parts[place] = f"{inner.operator}({', '.join(map(str, inner.inputs))})"
    return f"{op.operator}({', '.join(parts)})"


def ropes_before_a_cache(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    """Yield the rotations that may have been left out of what a cache takes."""
    graph = bench.graph(judged.segment)
    fed = np.asarray(bench.oracle.segments[judged.segment].positions, np.int32)
    for place, name in enumerate(op.inputs if op.operator == "append" else ()):
        kind = None if name is None else graph.type_of(Site(step, name))
        if kind is None or len(kind.axes) != 4 or not isinstance(kind.shape[-1], int):
            continue
        for found in lost_ropes(step, op, 0, fed, kind.shape[-1], bench.constants):
            turn = found.change.after
            assert turn is not None, "a rope is put behind a result"
            yield msgspec.structs.replace(
                found,
                change=Change(step, op.id, before={place: _of_one(turn)}),
                what=f"a rope of operand {place}",
            )


def _of_one(after: Callable[[tuple[Array, ...]], tuple[Array, ...]]) -> Callable[[Array], Array]:
    """Return what a change of the only result does to a value."""
    return lambda value: after((value,))[0]


def later_edges(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    """Yield the edges that the circuit makes after an op, as its operands.

    Only what the oracle shows is one: in the oracle it may stand before.
    """
    graph = bench.graph(judged.segment)
    function = graph.function(step)
    at = next(i for i, other in enumerate(function.ops) if other.id == op.id)
    for place, name in enumerate(op.inputs):
        if name is None or not graph.is_edge(step, name):
            continue
        kind = graph.type_of(Site(step, name))
        for edge in (edge for other in function.ops[at + 1 :] for edge in other.results):
            site = Site(step, edge.name)
            if kind is None or (edge.type.axes, edge.type.shape) != (kind.axes, kind.shape):
                continue
            if bench.oracle.value(graph, judged.segment, site) is None:
                continue
            yield read_instead(graph, step, op, place, site, edge.name, "edge made later")
