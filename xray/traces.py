"""A recorded trace as the subject, without its model: stages as far as two traces decide them.

No op can be replayed without weights and a graph, so a checkpoint outside its budget stays a
question, whose probe is the same diagnosis with the model at hand.
"""

from pathlib import Path
from typing import Any

import msgspec

from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.diagnosis import Coverage, Diagnosis, Divergence, Probe, Round, Stage, StageName
from cke.schemas.numerical_report import Report
from cke.schemas.trace import Body
from cke.xray.classes import ARCHITECTURE_POLICY, POLICY, STAGES
from cke.xray.diff import OVER, diff_traces
from cke.xray.finding import Finding, open_at
from cke.xray.joins import binding_fault, declared_fault, metadata_fault, schedule_fault
from cke.xray.report import cited, point_of
from cke.xray.second import with_opinion
from cke.xray.sides import OracleSide
from cke.xray.stated import stated_fault

UNDECIDED = "what op makes the difference: with the model that was traced every op is replayed"


def diagnose_trace(
    subject: TraceFolder,
    oracle: OracleSide,
    request: CaptureRequest,
    folder: Path,
    *,
    reproduce: str,
    second: Diagnosis | None = None,
    second_sha256: str | None = None,
) -> Diagnosis:
    """Return the diagnosis of a recorded trace against an oracle that answers its request."""
    mine = subject.trace.body
    stages: dict[str, Stage] = {}
    finding = declared_fault(
        None, mine.producer.dtype, oracle.name, oracle.dtype, oracle.weight_dtypes
    )
    theirs: TraceFolder | None = None
    report: Report | None = None
    if finding is None:
        theirs = oracle.capture(request, folder / "oracle")
        finding = _joined(mine, theirs, oracle, stages)
    else:
        _note(stages, "metadata", finding, 1)
    if finding is None and theirs is not None:
        report = diff_traces(subject, theirs)
        finding = _numbers(report, stages)
        if finding is not None and second is not None:
            finding = with_opinion(finding, second, (mine, theirs.trace.body))
    tensors = 0 if theirs is None else len(theirs.trace.body.records)
    told = _diagnosis(mine, oracle, stages, finding, report, reproduce, tensors)
    return msgspec.structs.replace(told, second_report=cited(second, second_sha256))


def _joined(
    mine: Body, theirs: TraceFolder, oracle: OracleSide, stages: dict[str, Stage]
) -> Finding | None:
    """Return the first finding before numbers."""
    other = theirs.trace.body
    records = len(mine.records)
    finding = binding_fault(mine, other)
    _note(stages, "binding", finding, 1)
    if finding is None:
        finding = schedule_fault(mine, other)
        _note(stages, "schedule", finding, len(mine.segments))
    if finding is None:
        finding = metadata_fault(None, mine, other)
        _note(stages, "metadata", finding, records)
    if finding is None:
        joined = frozenset(record.checkpoint_id for record in mine.records)
        finding, count = stated_fault(theirs, oracle.measured(), (), joined)
        name = "metadata" if finding is None or finding.row is None else finding.row.stage
        _note(stages, name, finding, records + count)
    return finding


def _note(stages: dict[str, Stage], name: StageName, finding: Finding | None, checked: int) -> None:
    state: Any = "passed" if finding is None else "broken"
    stages[name] = Stage(name=name, state=state, checked=checked, detail="two traces")


def _numbers(report: Report, stages: dict[str, Stage]) -> Finding | None:
    """Return the question of the first checkpoint outside its budget, or of the first flip."""
    over = next((row for row in report.rows if row.status in OVER), None)
    compared = sum(row.metrics is not None for row in report.rows)
    checked = sum(ranking.positions for ranking in report.rankings)
    if over is not None:
        broken = [
            f"the {item.side}'s own {item.check} at {item.checkpoint_id} does not hold"
            for item in report.conservation
            if not item.holds and item.segment == over.segment
        ]
        because = "the first checkpoint outside its budget, in the order of the graph"
        finding = open_at(over, (because, *broken), UNDECIDED)
        _note(stages, "numbers", finding, compared)
        return finding
    _note(stages, "numbers", None, compared)
    if report.first_flip is None:
        _note(stages, "behaviour", None, checked)
        return None
    segment, row, position = report.first_flip
    text = f"the first token differs at row {row}, position {position} of forward {segment}"
    finding = Finding(
        failure_class="RANKING_DIVERGENCE",
        checkpoint_id="logits",
        segment=segment,
        because=(f"{text}, with every tensor inside its budget",),
        question=UNDECIDED,
    )
    _note(stages, "behaviour", finding, checked)
    return finding


def _diagnosis(
    mine: Body,
    oracle: OracleSide,
    stages: dict[str, Stage],
    finding: Finding | None,
    report: Report | None,
    reproduce: str,
    tensors: int,
) -> Diagnosis:
    rows = () if report is None else tuple(r for r in report.rows if r.metrics is not None)
    missing = Stage(name="weights", state="not_available", checked=0, detail="no model is given")
    told = {**stages, **({"weights": missing} if report is not None else {})}
    unreached = {n: Stage(name=n, state="not_reached", checked=0, detail="") for n in STAGES}
    open_, owner = finding is not None and finding.open, finding and finding.fix_owner
    status: Any = "incomplete" if open_ or (finding is None and not rows) else "complete"
    if finding is not None and not open_:
        status = "stopped"
    elif report is not None and report.status == "incomplete":
        status = "incomplete"
    probe = f"{reproduce} --model MODEL"
    return Diagnosis(
        status=status,
        verdict=None if report is None else report.verdict,
        banner=f"no edges compared — {oracle.name}" if report is None else report.banner,
        scope={
            "circuit": mine.identity.circuit,
            "dtype": mine.producer.dtype,
            "rows": len(mine.segments[0].tokens),
            "tokens": sum(len(s.tokens[0]) for s in mine.segments if s.phase == "prefill"),
            "decode_steps": sum(s.phase == "decode" for s in mine.segments),
            "segments": [],
            "oracle": oracle.name,
        },
        subject={} if report is None else report.subject,
        oracle={"producer": oracle.name, "dtype": oracle.dtype}
        if report is None
        else report.oracle,
        stages=tuple(told.get(name, unreached[name]) for name in STAGES),
        first_divergence=None if finding is None else _divergence(finding, rows, mine),
        next_probe=Probe(command=probe, question=finding.question or UNDECIDED)
        if finding is not None and open_
        else None,
        coverage=Coverage(
            ops_with_edges=0,
            ops_total=0,
            edges_compared=len({(row.checkpoint_id, row.role) for row in rows}),
            edges_total=mine.edges_total or len(mine.records),
            ops_without_edges=(),
        ),
        rounds=(
            Round(
                purpose="what was recorded",
                layers=None,
                edges=None,
                subject_tensors=len(mine.records),
                oracle_tensors=tensors,
            ),
        ),
        points=tuple(point_of(row) for row in rows),
        byte_exact_prefix=0 if report is None else report.byte_exact_prefix,
        first_non_exact=None if report is None else report.first_non_exact,
        first_over_gate=None if report is None else report.first_over_gate,
        curves=() if report is None else report.curves,
        rankings=() if report is None else report.rankings,
        first_flip=None if report is None else report.first_flip,
        second_report=None,
        architecture_policy={
            "rule": POLICY,
            **({"owner": owner, "where": ARCHITECTURE_POLICY[owner]} if owner else {}),
        },
        fix_progression=(),
        reproduce=reproduce,
    )


def _divergence(finding: Finding, rows: Any, mine: Body) -> Divergence:
    row = finding.row
    before = [item.checkpoint_id for item in rows if item.status not in OVER]
    first = next((i for i, item in enumerate(rows) if item.status in OVER), len(before))
    layer = finding.checkpoint_id or ""
    return Divergence(
        checkpoint_id=finding.checkpoint_id,
        role=finding.role,
        layer=int(layer.split(".")[1]) if layer.startswith("layer.") else None,
        phase=None if finding.segment is None else mine.segments[finding.segment].phase,
        segment=finding.segment,
        op=None,
        operator=None,
        kernel_id=finding.kernel_id,
        source=None,
        failure_class=finding.failure_class,
        stage="numbers" if row is None else row.stage,
        fix_owner=finding.fix_owner,
        recommended_action=None if row is None else row.action,
        because=finding.because,
        metrics=finding.metrics,
        gate=finding.gate,
        last_passing_checkpoint=rows[first - 1].checkpoint_id if first and rows else None,
    )
