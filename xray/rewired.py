"""Counterfactuals of last resort: what was left out before an op, two ops exchanged, a later edge.

They are tried when no likelier change closes the gap, since they are many.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.references import REFERENCES
from cke.schemas.graph_ir import Op
from cke.xray.candidates import ACTIVATIONS, PAIRWISE, Candidate, read_instead
from cke.xray.graph import Site
from cke.xray.local import Bench, Judged
from cke.xray.missing import lost_ropes
from cke.xray.replay import Change

Array = NDArray[Any]
UNARY = (*ACTIVATIONS, "rms_norm", "layer_norm")


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
    """Yield an activation or a norm, and the sum or product next to it, in the other order.

    `act(a) * b` in place of `act(a * b)`, `norm(a + b)` in place of `norm(a) + b`, and back: two
    ops that change at once.
    """
    graph = bench.graph(judged.segment)
    makers = {edge.name: other for other in graph.function(step).ops for edge in other.results}
    if op.operator in UNARY:
        inner = makers.get(op.inputs[0] or "")
        if inner is not None and inner.operator in PAIRWISE:
            yield from _of_one(bench, judged, step, op, inner)
    for place in (0, 1) if op.operator in PAIRWISE else ():
        inner = makers.get(op.inputs[place] or "")
        if inner is not None and inner.operator in UNARY:
            yield from _of_both(bench, judged, step, op, place, inner)


def _of_one(bench: Bench, judged: Judged, step: int, op: Op, inner: Op) -> Iterator[Candidate]:
    """Yield `f(a) o b` and `a o f(b)` in place of `f(a o b)`."""
    graph = bench.graph(judged.segment)
    names = [str(name) for name in inner.inputs[:2]]
    combine = REFERENCES[inner.operator]
    for place in (0, 1):
        beside = bench.oracle.value(graph, judged.segment, Site(step, names[1 - place]))
        if beside is None:
            continue

        def after(
            results: tuple[Array, ...], beside: Array = beside, place: int = place
        ) -> tuple[Array, ...]:
            pair = (results[0], beside) if place == 0 else (beside, results[0])
            return (combine(*pair),)

        yield _exchanged(
            Change(step, op.id, inputs={0: graph.origin(Site(step, names[place]))}, after=after),
            f"{op.operator}({inner.operator}({', '.join(names)}))",
            _applied(inner.operator, names, place, op.operator),
        )


def _of_both(
    bench: Bench, judged: Judged, step: int, op: Op, place: int, inner: Op
) -> Iterator[Candidate]:
    """Yield `f(a o b)` in place of `f(a) o b`, where `o` can be undone: for a sum, or `f` alone."""
    graph = bench.graph(judged.segment)
    names = [str(name) for name in op.inputs[:2]]
    names[place] = str(inner.inputs[0])
    if inner.operator in ACTIVATIONS:
        activate = REFERENCES[inner.operator]
        change = Change(
            step,
            op.id,
            inputs={place: graph.origin(Site(step, names[place]))},
            after=lambda results: (activate(results[0]),),
        )
    else:
        beside = bench.oracle.value(graph, judged.segment, Site(step, names[1 - place]))
        if op.operator != "add" or beside is None:
            return
        change = Change(
            step,
            inner.id,
            before={0: lambda value: value + beside},
            after=lambda results: (results[0] - beside,),
        )
    yield _exchanged(
        change,
        _applied(op.operator, names, place, inner.operator),
        f"{inner.operator}({op.operator}({', '.join(names)}))",
    )


def _applied(combine: str, names: Sequence[str], place: int, function: str) -> str:
    parts = [f"{function}({name})" if at == place else name for at, name in enumerate(names)]
    return f"{combine}({', '.join(parts)})"


def _exchanged(change: Change, old: str, new: str) -> Candidate:
    return Candidate(
        change=change,
        kind="operand",
        what="the order of two ops",
        old=old,
        new=new,
        origin="two ops exchanged",
    )


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
                change=Change(step, op.id, before={place: _only(turn)}),
                what=f"a rope of operand {place}",
            )


def _only(after: Callable[[tuple[Array, ...]], tuple[Array, ...]]) -> Callable[[Array], Array]:
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
