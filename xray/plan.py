"""What to capture: the sparse set, the edges of one block, and what is left after both."""

from collections.abc import Iterable

from cke.runtime.records import join_id, split_id
from cke.schemas.diagnosis import Diagnosis
from cke.xray.case import Case
from cke.xray.graph import ProgramGraph, Site

MAX_GROUP = 512 << 20


def sparse_edges(case: Case) -> frozenset[str]:
    """Return the names of the sparse set: what each block gives to the next."""
    names: set[str] = set()
    for graph in case.graphs.values():
        for index, step in enumerate(graph.steps):
            function = graph.functions[step.function]
            for result in function.results:
                for point in graph.points_of(Site(index, result)):
                    names.add(split_id(point.checkpoint_id)[0])
    return frozenset(names | {"logits"} & _names(case))


def first_round(case: Case, resume: Diagnosis | None) -> tuple[str, frozenset[str]]:
    """Return what the first round is for and asks for; a resumed one asks for a block as well."""
    sparse = sparse_edges(case)
    found = None if resume is None else resume.first_divergence
    if found is None or found.checkpoint_id is None:
        return "sparse: the results of every block", sparse
    graph = case.graphs.get(found.phase or "") or next(iter(case.graphs.values()))
    site = graph.site_of(found.checkpoint_id, found.role)
    if site is None:
        return "sparse: the earlier edge is no longer in the circuit", sparse
    layer = graph.steps[site.step].layer
    block = {join_id(name, layer) for name in block_edges(graph, site.step)}
    where = graph.step_key(site.step)
    return f"sparse, and the edges of `{where}`, where the earlier report ended", sparse | block


def _names(case: Case) -> set[str]:
    return {item.checkpoint.name for item in case.subject.manifest.checkpoints}


def block_edges(graph: ProgramGraph, index: int) -> frozenset[str]:
    """Return the names of every edge inside one block."""
    function = graph.function(index)
    edges = [edge for op in function.ops for edge in op.results]
    return frozenset(edge.checkpoint.name for edge in (*edges, *function.aliases))


def remaining(case: Case) -> Iterable[tuple[frozenset[str], frozenset[int] | None]]:
    """Yield what the sparse round left out: layers in groups, then what is in no layer."""
    graph = next(iter(case.graphs.values()))
    layers = [step.layer for step in graph.steps if step.layer is not None]
    bound = max(1, MAX_GROUP // max(1, layer_bytes(case, graph)))
    names = frozenset().union(
        *(
            block_edges(graph, index)
            for index, step in enumerate(graph.steps)
            if step.layer is not None
        )
    )
    for start in range(0, len(layers), bound):
        group = frozenset(layer for layer in layers[start : start + bound] if layer is not None)
        yield names, group
    loose = [i for i, step in enumerate(graph.steps) if step.layer is None]
    if loose:
        yield frozenset().union(*(block_edges(graph, i) for i in loose)), frozenset()


def layer_bytes(case: Case, graph: ProgramGraph) -> int:
    """Return about how many bytes the edges of one layer take in the request."""
    rows = len(case.request.tokens)
    width = max(map(len, case.request.tokens))
    symbols = {"B": rows, "T": width, "S": width + len(case.request.forced)}
    layer = next((i for i, s in enumerate(graph.steps) if s.layer is not None), None)
    if layer is None:
        return 1
    total = 0
    for op in graph.function(layer).ops:
        for edge in op.results:
            size = 4
            for dim in edge.type.shape:
                size *= symbols[dim] if isinstance(dim, str) else dim
            total += size
    return total
