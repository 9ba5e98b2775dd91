"""An attention packet in a diagnosis: a measurement, never a verdict (PKT-68).

Its error is held against X-Ray's own budget. It bears on a finding only when the bytes of its
queries, keys and values are those that the subject's own captures show in the same call.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import RUN_TO_WIRE, WIRE_DTYPES, digest, split_id
from cke.schemas.attention_packet import PacketMeasurement
from cke.schemas.diagnosis import PacketEvidence
from cke.schemas.graph_ir import Op
from cke.xray.budget import forward_error
from cke.xray.case import Case
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph, Site
from cke.xray.values import TraceValues, key_positions

INPUTS = frozenset(("queries", "storedKeys", "storedValues"))
OUTPUT = "output"


def weigh_packet(case: Case, packet: PacketMeasurement) -> PacketEvidence:
    """Return the measurement with its budget, and what of it the subject's captures prove."""
    dtypes = (RUN_TO_WIRE[case.subject.dtype], WIRE_DTYPES[packet.dtype])
    budget = forward_error(dtypes, max(packet.reduction_length, _width(case, packet)), 0, None)
    error = packet.comparison.global_.relative_l2
    segment, identical = _proof(case, packet)
    return PacketEvidence(
        packet_sha256=packet.packet_sha256,
        layer=packet.model_layer_index,
        position=packet.position,
        segment=segment,
        identical=identical,
        relative_l2=error,
        budget=budget,
        within=None if error is None else error <= budget.relative_rmse,
        limitations=packet.limitations,
    )


def with_packet(case: Case, finding: Finding | None, evidence: PacketEvidence) -> Finding | None:
    """Return the finding with what a packet of the same call says of its attention.

    A finding keeps its class. An open one, at the attention or after it in its layer, becomes
    ATTENTION_ARITHMETIC_DIVERGENCE when the attention's own output is outside the budget.
    """
    if finding is None or not INPUTS <= set(evidence.identical):
        return finding
    if finding.checkpoint_id is None or split_id(finding.checkpoint_id)[1] != evidence.layer:
        return finding
    because = (*finding.because, told(evidence))
    if finding.operator == "sdpa":
        return msgspec.structs.replace(finding, because=because)
    found = _attention_before(case, finding, evidence)
    if finding.failure_class is not None or evidence.within is not False or found is None:
        return finding
    graph, site, op = found
    return msgspec.structs.replace(
        finding,
        failure_class="ATTENTION_ARITHMETIC_DIVERGENCE",
        owner="kernel",
        op=op.id,
        operator=op.operator,
        kernel_id=graph.call(site).kernel_id,
        source=str(op.span),
        because=because,
        question=None,
    )


def told(evidence: PacketEvidence) -> str:
    """Return what a packet says, in one sentence."""
    error = "without a number" if evidence.relative_l2 is None else f"{evidence.relative_l2:.3g}"
    same = ", ".join(evidence.identical) or "nothing"
    where = f"identical to forward {evidence.segment}: {same}"
    if evidence.segment is None:
        where = "no forward of this run is its call (`--steps` adds decode steps)"
    return (
        f"packet {evidence.packet_sha256[:12]} of layer {evidence.layer}, position "
        f"{evidence.position}: relative L2 {error} against an FP32 softmax of its own inputs, "
        f"budget {evidence.budget.relative_rmse:.2g}; {where}"
        + ("" if INPUTS <= set(evidence.identical) else "; it decides nothing here")
    )


def _attention_before(
    case: Case, finding: Finding, evidence: PacketEvidence
) -> tuple[ProgramGraph, Site, Op] | None:
    """Return the attention at or before the finding, when its captured output is the packet's."""
    if OUTPUT not in evidence.identical or finding.segment is None:
        return None
    graph = case.graph(finding.segment)
    end, order = graph.site_of(str(finding.checkpoint_id), finding.role), graph.order()
    for site, op in _attentions(graph, evidence.layer):
        if end is not None and order[site] <= order[end]:
            return graph, site, op
    return None


def _attentions(graph: ProgramGraph, layer: int) -> Iterator[tuple[Site, Op]]:
    """Yield the results of the attentions of a layer."""
    for index, op in graph.ops():
        if op.operator == "sdpa" and graph.steps[index].layer == layer:
            yield Site(index, op.results[-1].name), op


def _width(case: Case, packet: PacketMeasurement) -> int:
    sizes = [
        op.results[-1].type.shape[-1]
        for graph in case.graphs.values()
        for _, op in _attentions(graph, packet.model_layer_index)
    ]
    return max((size for size in sizes if isinstance(size, int)), default=1)


def _proof(case: Case, packet: PacketMeasurement) -> tuple[int | None, tuple[str, ...]]:
    """Return the forward that is the packet's call, and the tensors whose bytes are the same."""
    best: tuple[int | None, tuple[str, ...]] = (None, ())
    if not case.pairs:
        return best
    values = case.bench().subject
    for segment, source in enumerate(values.segments):
        graph = case.graph(segment)
        for site, op in _attentions(graph, packet.model_layer_index):
            for row, positions in enumerate(source.positions):
                if positions != (packet.position,):
                    continue
                seen = _call(values, graph, segment, row, site, op)
                names = tuple(n for n, sha in seen.items() if packet.tensor_sha256.get(n) == sha)
                if best[0] is None or len(names) > len(best[1]):
                    best = segment, names
    return best


def _call(
    values: TraceValues, graph: ProgramGraph, segment: int, row: int, site: Site, op: Op
) -> dict[str, str]:
    """Return the hashes of one row's call, laid out as in a packet: [head, token, width]."""
    held = key_positions(values.segments, segment)[row]
    order = np.argsort(held, kind="stable")[int((held < 0).sum()) :]
    edges = dict(zip(("queries", "storedKeys", "storedValues"), op.inputs, strict=False))
    edges[OUTPUT] = site.edge
    found: dict[str, str] = {}
    for name, edge in edges.items():
        array = values.value(graph, segment, Site(site.step, str(edge)))
        if array is None:
            continue
        rows: NDArray[np.generic] = array[row]
        if name.startswith("stored"):
            rows = rows[order]
        found[name] = digest(rows.swapaxes(0, 1))
    return found
