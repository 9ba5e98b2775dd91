"""Counterfactuals of last resort: an activation that was left out, an edge that is made later.

They are tried when no likelier change closes the gap, since they are many.
"""

from collections.abc import Iterator

from cke.schemas.graph_ir import Op
from cke.xray.candidates import ACTIVATIONS, Candidate
from cke.xray.graph import Site
from cke.xray.local import Bench, Judged
from cke.xray.replay import Change


def lost_activations(step: int, op: Op) -> Iterator[Candidate]:
    """Yield the activations that may have been left out before an op, on one operand."""
    if op.operator not in ("add", "multiply", "linear"):
        return
    for place in range(len(op.inputs)):
        for name in ACTIVATIONS:
            yield Candidate(
                change=Change(step, op.id, before={place: name}),
                kind="insertion",
                what=f"{name} of operand {place}",
                old=None,
                new=name,
                origin="operator table",
            )


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
            yield Candidate(
                change=Change(step, op.id, inputs={place: site}),
                kind="operand",
                what=f"operand {place}",
                old=name,
                new=edge.name,
                origin="edge made later",
            )
