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
from cke.xray.replay import REPLAY_ERRORS, Change

Array = NDArray[Any]
UNARY = (*ACTIVATIONS, "rms_norm", "layer_norm", "scale", "softcap")


def lost_activations(step: int, op: Op) -> Iterator[Candidate]:
    """Yield the activations that may be missing before an op, on one operand, or after it."""
    before = op.operator in ("add", "multiply", "linear", "clip")
    after = len(op.results) == 1 and not before and op.operator not in ACTIVATIONS
    for name in (*ACTIVATIONS, "softplus"):
        for place in range(len(op.inputs)) if before else ():
            yield _activated(Change(step, op.id, before={place: REFERENCES[name]}), name, place)
        if after:
            yield _activated(Change(step, op.id, after=_to_the_only(REFERENCES[name])), name, None)


def _activated(change: Change, name: str, place: int | None) -> Candidate:
    return Candidate(
        change=change,
        kind="insertion",
        what=name if place is None else f"{name} of operand {place}",
        old=None,
        new=name,
        origin="operator table",
    )


def regrouped(bench: Bench, judged: Judged, step: int, op: Op) -> Iterator[Candidate]:
    """Yield a function of one value, and the sum or product next to it, in the other order.

    `act(a) * b` in place of `act(a * b)`, `norm(a + b)` in place of `norm(a) + b`, and back: two
    ops that change at once.
    """
    graph = bench.graph(judged.segment)
    makers = {edge.name: other for other in graph.function(step).ops for edge in other.results}
    own = _argument(graph, step, op)
    if own is not None:
        inner = makers.get(op.inputs[own] or "")
        if inner is not None and inner.operator in PAIRWISE:
            yield from _of_one(bench, judged, step, op, own, inner)
    for place in (0, 1) if op.operator in ("add", "multiply") and own is None else ():
        inner = makers.get(op.inputs[place] or "")
        argument = None if inner is None else _argument(graph, step, inner)
        if inner is not None and argument is not None:
            yield from _of_both(bench, judged, step, op, place, inner, argument)


def _argument(graph: ProgramGraph, step: int, op: Op) -> int | None:
    """Return the place of the one value that an op is a function of; None when it has others."""
    if op.operator in UNARY:
        return 0
    values = [at for at, name in enumerate(op.inputs) if name and graph.is_edge(step, name)]
    return values[0] if op.operator == "multiply" and len(values) == 1 else None


def _of_one(
    bench: Bench, judged: Judged, step: int, op: Op, own: int, inner: Op
) -> Iterator[Candidate]:
    """Yield `f(a) o b` and `a o f(b)` in place of `f(a o b)`."""
    graph = bench.graph(judged.segment)
    names = [str(name) for name in inner.inputs[:2]]
    combine = REFERENCES[inner.operator]
    for place in (0, 1):
        beside = _value(bench, judged, step, names[1 - place])
        if beside is None:
            continue

        def after(value: Array, beside: Array = beside, place: int = place) -> Array:
            made: Array = combine(*((value, beside) if place == 0 else (beside, value)))
            return made

        site = graph.origin(Site(step, names[place]))
        turned = [_text(op, own, name) if at == place else name for at, name in enumerate(names)]
        yield _exchanged(
            Change(step, op.id, inputs={own: site}, after=_to_the_only(after)),
            _text(op, own, f"{inner.operator}({', '.join(names)})"),
            f"{inner.operator}({', '.join(turned)})",
        )


def _of_both(
    bench: Bench, judged: Judged, step: int, op: Op, place: int, inner: Op, argument: int
) -> Iterator[Candidate]:
    """Yield `f(a o b)` in place of `f(a) o b`: the inner op changes, and what follows is undone."""
    names = [str(name) for name in op.inputs[:2]]
    names[place] = str(inner.inputs[argument])
    beside = _value(bench, judged, step, names[1 - place])
    if beside is None:
        return

    def before(value: Array, beside: Array = beside) -> Array:
        return value + beside if op.operator == "add" else value * beside

    def after(value: Array, beside: Array = beside) -> Array:
        if op.operator == "add":
            return value - beside
        return np.divide(value, beside, out=np.zeros_like(value), where=beside != 0)

    turned = [
        _text(inner, argument, name) if at == place else name for at, name in enumerate(names)
    ]
    yield _exchanged(
        Change(step, inner.id, before={argument: before}, after=_to_the_only(after)),
        f"{op.operator}({', '.join(turned)})",
        _text(inner, argument, f"{op.operator}({', '.join(names)})"),
    )


def _text(op: Op, place: int, value: str) -> str:
    """Return an op as a call, with a text as the value that it is a function of."""
    names = [str(name) for name in op.inputs] if op.operator == "multiply" else [value]
    names[place] = value
    return f"{op.operator}({', '.join(names)})"


def _value(bench: Bench, judged: Judged, step: int, name: str) -> Array | None:
    """Return what the oracle shows of a value, or what follows from what it shows."""
    site = Site(step, name)
    shown = bench.oracle.value(bench.graph(judged.segment), judged.segment, site)
    if shown is not None:
        return shown
    try:
        return bench.reference(judged.segment, site).result(site)
    except REPLAY_ERRORS:
        return None


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


def _to_the_only(
    function: Callable[[Array], Array],
) -> Callable[[tuple[Array, ...]], tuple[Array, ...]]:
    """Return what a function does to the only result of an op."""
    return lambda results: (function(results[0]),)


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
