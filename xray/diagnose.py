"""The diagnosis: stages in order, then the first divergent edge, its class, its owner, its proof.

A finding in one stage stops the later ones. Captures are asked for in rounds: a sparse set, then
the edges of the first failing block, then, while nothing local explains it, of the blocks above;
a circuit line confirmed wrong is also judged in the layers before, where results may hide it.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from cke.runtime.records import join_id, split_id
from cke.runtime.schedule import CaptureRequest
from cke.schemas.attention_packet import PacketMeasurement
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.numerical_report import Row
from cke.xray.case import Case, Say
from cke.xray.compiled import compiled_fault
from cke.xray.finding import Finding, open_at
from cke.xray.graph import ProgramGraph, Site
from cke.xray.joins import declared_fault
from cke.xray.local import judge
from cke.xray.locate import explain, first_fault
from cke.xray.packets import weigh_packet, with_packet
from cke.xray.plan import block_edges, first_round, remaining
from cke.xray.report import report_of
from cke.xray.second import with_second
from cke.xray.sides import OracleSide, SubjectSide

Then = Callable[[Case, Diagnosis], Diagnosis]


def diagnose(
    subject: SubjectSide,
    oracle: OracleSide,
    request: CaptureRequest,
    folder: Path,
    *,
    reproduce: str,
    second: Diagnosis | None = None,
    second_sha256: str | None = None,
    persistent: bool = False,
    then: Then = lambda case, report: report,
    packet: PacketMeasurement | None = None,
    resume: Diagnosis | None = None,
    say: Say = lambda text: None,
) -> Diagnosis:
    """Return the diagnosis; captures are written under `folder`, round by round.

    `resume` is an earlier report: its failing block is captured in the first round, beside the
    sparse set, which shows again that all before it passes. Nothing captured then is used.

    `persistent` runs the decode steps of the subject once more as one prefill, for the ranking.
    `then` is given the case that has ended with its report, and returns what is to be reported.
    """
    case = Case(subject, oracle, request, folder, say)
    finding = declared_fault(
        subject.manifest, subject.dtype, oracle.name, oracle.dtype, oracle.weight_dtypes
    )
    if finding is not None:
        case.stage("metadata", finding, 1, "declared metadata, before either model ran")
    else:
        finding = _run(case, resume)
    if finding is not None and second is not None:
        finding = with_second(finding, second, case.bodies)
    if persistent and case.pairs and request.forced:
        case.replay_decode()
    evidence = None if packet is None else weigh_packet(case, packet)
    if evidence is not None:
        finding = with_packet(case, finding, evidence)
    report = report_of(case, finding, reproduce, second, second_sha256)
    return then(case, msgspec.structs.replace(report, packet=evidence))


def _run(case: Case, resume: Diagnosis | None) -> Finding | None:
    finding = case.capture(*first_round(case, resume), None)
    if finding is not None:
        return finding
    over = case.first_over()
    if over is None:
        for names, layers in remaining(case):
            finding = case.capture("the edges between", names, layers)
            if finding is not None:
                return finding
            over = case.first_over()
            if over is not None:
                break
    if over is None:
        return _behaviour(case)
    finding = _localise(case, over)
    case.stage("numbers", finding, len(case.ordered()), "checkpoints against their budgets")
    return finding


AGREES = ("the checkpoint is outside its budget, and every op that can be replayed agrees",)


def _localise(case: Case, over: Row) -> Finding | None:
    """Return the finding of the first failing block, or of one above it."""
    graph = case.graph(over.segment)
    site = graph.site_of(over.checkpoint_id, over.role)
    if site is None:
        return open_at(over, AGREES, "which op of the circuit makes this checkpoint")
    index = site.step
    while index >= 0:
        finding = _block(case, graph, index)
        if finding is not None:
            return finding
        over = case.first_over() or over
        bench = case.bench()
        for segment in range(over.segment + 1):
            if case.graph(segment).phase != graph.phase:
                continue
            finding = first_fault(bench, segment, index)
            if finding is not None:
                return _earlier(case, graph, index, finding) or finding
        for segment in range(over.segment + 1):
            if case.graph(segment).phase == graph.phase:
                finding = compiled_fault(bench, segment, index)
                if finding is not None:
                    return finding
        index -= 1
    return open_at(
        over,
        AGREES,
        "no op alone explains it: a run of both sides in a wider dtype tells accumulated rounding "
        "from a fault",
    )


def _block(case: Case, graph: ProgramGraph, index: int) -> Finding | None:
    """Capture the edges of a block, unless they are there; return a finding of the join."""
    step = graph.steps[index]
    names = block_edges(graph, index)
    layer = step.layer
    known = {split_id(checkpoint_id) for _, checkpoint_id, _ in case.rows}
    if all((name, layer) in known for name in names):
        return None
    layers = frozenset() if layer is None else frozenset((layer,))
    where = graph.step_key(index)
    return case.capture(f"the edges of `{where}`", names, layers)


def _earlier(case: Case, graph: ProgramGraph, index: int, finding: Finding) -> Finding | None:
    """Return the finding of the same op in an earlier layer, whose block's result hides it.

    A confirmed change is of a circuit line, which earlier layers share; what it adds to their
    residual streams may be too small to leave the budget of the sums.
    """
    confirmed = finding.owner == "circuit" and finding.confirmed_by is not None
    if not confirmed or finding.checkpoint_id is None or finding.segment is None:
        return None
    name, layer = split_id(finding.checkpoint_id)
    sites = [
        site
        for step in graph.steps[:index]
        if step.layer is not None and layer is not None
        if (site := graph.site_of(join_id(name, step.layer), finding.role)) is not None
    ]
    wanted = {name}
    for site in sites:
        op = graph.producer(site)
        read = () if op is None else (item for item in op.inputs if item)
        edges = (Site(site.step, item) for item in read if graph.is_edge(site.step, item))
        wanted |= {split_id(p.checkpoint_id)[0] for edge in edges for p in graph.points_of(edge)}
    found = (graph.steps[site.step].layer for site in sites)
    layers = frozenset(layer for layer in found if layer is not None)
    if not sites:
        return None
    broken = case.capture(f"`{name}` of the layers before", frozenset(wanted), layers)
    if broken is not None:
        return broken
    bench = case.bench()
    for segment in range(finding.segment + 1):
        for site in sites if case.graph(segment).phase == graph.phase else ():
            judged = judge(bench, segment, site)
            if judged is not None and not judged.clean:
                return explain(bench, judged)
    return None


def _behaviour(case: Case) -> Finding | None:
    case.stage("numbers", None, len(case.ordered()), "checkpoints against their budgets")
    flip = next((item for item in case.rankings.values() if item.flips), None)
    checked = sum(item.positions for item in case.rankings.values())
    if flip is None:
        case.stage("behaviour", None, checked, "first token at every position")
        return None
    row, position = flip.flips[0]
    finding = Finding(
        failure_class="RANKING_DIVERGENCE",
        checkpoint_id="logits",
        segment=flip.segment,
        because=(
            f"the first token differs at row {row}, position {position} of forward "
            f"{flip.segment}, with every tensor inside its budget: no edge owns it yet",
        ),
        question="whether the two largest logits are a tie within the budget, or an edge that no "
        "capture shows differs",
    )
    case.stage("behaviour", finding, checked, "first token at every position")
    return finding
