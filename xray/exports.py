"""Whether the oracle's export of an edge, and not the edge, is what differs.

An export may show another value than the oracle went on with, or the same one on other axes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cke.schemas.graph_ir import Op
from cke.xray.diff import OVER, status_of
from cke.xray.graph import ProgramGraph, Site
from cke.xray.local import Bench, Judged, local_gate
from cke.xray.metrics import compare
from cke.xray.replay import NotReplayable, ReferenceReplayer

Array = NDArray[Any]


def export_is_wrong(bench: Bench, judged: Judged) -> bool:
    """Return whether what reads the edge agrees with the oracle on the definition's result only.

    A fault in the circuit or the oracle would show in what reads the edge; only an export that
    shows another value than the oracle computed with does not.
    """
    graph = bench.graph(judged.segment)
    origin = graph.origin(judged.site)
    told = 0
    for site in _readers(graph, origin, judged.op):
        own = site in _results(origin, judged.op)
        on_definition = _reads(bench, judged, site, {} if own else {origin: judged.reference})
        if on_definition is False:
            return False
        if on_definition and (own or _reads(bench, judged, site, {origin: judged.oracle}) is False):
            told += 1
    return told > 0


def _reads(bench: Bench, judged: Judged, site: Site, given: dict[Site, Array]) -> bool | None:
    """Return whether a reader of an edge gives the oracle's value on a given one; None: unseen."""
    graph = bench.graph(judged.segment)
    wanted = bench.oracle.value(graph, judged.segment, site)
    if wanted is None:
        return None
    replayer = ReferenceReplayer(graph, bench.oracle, bench.weights, judged.segment, given=given)
    try:
        made = replayer.result(site)
    except NotReplayable:
        return None
    if made.shape != wanted.shape:
        return False
    axes = graph.edge(site).type.axes
    metrics = compare(made, wanted, axes, bench.valid(judged.segment, site))
    return status_of(metrics, local_gate(graph, judged.cone, made, wanted)) not in OVER


def axes_exchanged(bench: Bench, judged: Judged) -> tuple[str, ...] | None:
    """Return the order of equal axes in which the oracle's export agrees, if there is one."""
    axes = bench.graph(judged.segment).edge(judged.site).type.axes
    shape = judged.oracle.shape
    for left in range(len(axes)):
        for right in range(left + 1, len(axes)):
            if shape[left] != shape[right] or shape[left] < 2:
                continue
            turned = np.swapaxes(judged.oracle, left, right)
            metrics = compare(judged.reference, np.ascontiguousarray(turned), axes, judged.valid)
            if status_of(metrics, judged.replay.gate) not in OVER:
                names = list(axes)
                names[left], names[right] = names[right], names[left]
                return tuple(names)
    return None


def _results(origin: Site, op: Op) -> list[Site]:
    """Return the results of attention that are made of an earlier one, in order."""
    names = [edge.name for edge in op.results]
    if op.operator != "sdpa" or origin.edge not in names:
        return []
    return [Site(origin.step, name) for name in names[names.index(origin.edge) + 1 :]]


def _readers(graph: ProgramGraph, origin: Site, op: Op) -> list[Site]:
    """Return the results of every op that reads a value, in its own block and the next."""
    found = _results(origin, op)
    for step in range(origin.step, min(origin.step + 2, len(graph.steps))):
        for reader in graph.function(step).ops:
            if reader.id == op.id and step == origin.step:
                continue
            names = [name for name in reader.inputs if name and graph.is_edge(step, name)]
            if any(graph.origin(Site(step, name)) == origin for name in names):
                found += [Site(step, edge.name) for edge in reader.results]
    return found
