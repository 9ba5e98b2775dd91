"""The report of a case: verdict, first divergence, coverage, drift, and what to do next."""

import re
import shlex
from typing import Any

from cke.runtime.records import split_id
from cke.schemas.diagnosis import Coverage, Diagnosis, Divergence, Point, Probe, Stage
from cke.schemas.numerical_report import Row
from cke.xray.case import Case
from cke.xray.classes import ARCHITECTURE_POLICY, POLICY, STAGES
from cke.xray.diff import OVER, curve, verdict_of
from cke.xray.finding import Finding
from cke.xray.graph import Site
from cke.xray.rows import circuit_rows, first_material, forwards_of

RECORDED = "TRACE_DIR"
"""Stands in a probe for an oracle that was recorded elsewhere."""


def report_of(
    case: Case,
    finding: Finding | None,
    reproduce: str,
    second: Diagnosis | None,
    second_sha256: str | None,
) -> Diagnosis:
    """Return the report of a case that has ended, with or without a finding."""
    rows = case.ordered()
    flips = [item for item in case.rankings.values() if item.flips]
    status = _status(finding, rows)
    verdict: Any = None
    if flips or status == "complete" or (status == "incomplete" and rows and finding is not None):
        verdict = verdict_of(bool(flips), (row.status for row in rows))
        verdict = None if status == "incomplete" and verdict == "pass_within_gate" else verdict
    body = case.report
    return Diagnosis(
        status=status,
        verdict=verdict,
        banner=_banner(case, rows),
        scope=_scope(case),
        subject={} if body is None else body.subject,
        oracle={"producer": case.oracle.name, "dtype": case.oracle.dtype}
        if body is None
        else body.oracle,
        stages=_stages(case),
        first_divergence=None if finding is None else _divergence(case, finding, rows),
        next_probe=_probe(case, finding, reproduce, second),
        coverage=_coverage(case, rows),
        rounds=tuple(case.rounds),
        points=tuple(point_of(row) for row in rows),
        byte_exact_prefix=next(
            (i for i, row in enumerate(rows) if not row.metrics or not row.metrics.byte_exact),
            len(rows),
        ),
        first_non_exact=next((r.stop for r in rows if r.status != "exact"), None),
        first_over_gate=next((r.stop for r in rows if r.status in OVER), None),
        curves=tuple(curve(rows, metric) for metric in ("max_abs", "rmse")),
        rankings=tuple(case.rankings[key] for key in sorted(case.rankings)),
        first_flip=None if not flips else (flips[0].segment, *flips[0].flips[0]),
        second_report=cited(second, second_sha256),
        architecture_policy={"rule": POLICY, **_policy(finding)},
        fix_progression=_progression(finding),
        reproduce=reproduce,
        first_material=first_material(case, rows),
        forwards=forwards_of(case),
        circuit=circuit_rows(case, rows),
        providers=case.subject.manifest.resolutions,
    )


def cited(second: Diagnosis | None, sha256: str | None) -> dict[str, Any] | None:
    """Return how a report names the report of a second oracle."""
    if second is None:
        return None
    oracle = second.oracle.get("producer")
    return {"sha256": sha256, "oracle": oracle, "verdict": second.verdict}


def _status(finding: Finding | None, rows: list[Row]) -> Any:
    if finding is None:
        return "complete" if rows else "incomplete"
    row = finding.row
    if row is None or finding.open:
        return "incomplete"
    if row.name in ("CAPTURE_NOT_NEUTRAL", "RUNTIME_NOT_REPEATABLE"):
        return "rejected"
    return "complete" if finding.metrics is not None else "stopped"


def _stages(case: Case) -> tuple[Stage, ...]:
    found: list[Stage] = []
    broken = False
    for name in STAGES:
        stage = case.stages.get(name)
        if stage is None or broken:
            stage = Stage(name=name, state="not_reached", checked=0, detail="")
        broken = broken or stage.state == "broken"
        found.append(stage)
    return tuple(found)


def _divergence(case: Case, finding: Finding, rows: list[Row]) -> Divergence:
    row = finding.row
    phase = None
    if finding.segment is not None and case.pairs:
        phase = case.pairs[0][0].trace.body.segments[finding.segment].phase
    stage: Any = (
        row.stage
        if row
        else next((s.name for s in case.stages.values() if s.state == "broken"), "numbers")
    )
    return Divergence(
        checkpoint_id=finding.checkpoint_id,
        role=finding.role,
        layer=None if finding.checkpoint_id is None else split_id(finding.checkpoint_id)[1],
        phase=phase,
        segment=finding.segment,
        op=finding.op,
        operator=finding.operator,
        kernel_id=finding.kernel_id,
        source=finding.source,
        failure_class=finding.failure_class,
        stage=stage,
        fix_owner=finding.fix_owner,
        recommended_action=None if row is None else row.action,
        because=finding.because,
        metrics=finding.metrics,
        gate=finding.gate,
        replay=finding.replay,
        confirmed_by=finding.confirmed_by,
        also_closing=finding.also_closing,
        tried=finding.tried,
        last_passing_checkpoint=_last_passing(case, finding, rows),
    )


def _last_passing(case: Case, finding: Finding, rows: list[Row]) -> str | None:
    last = None
    for row in rows:
        if row.checkpoint_id == finding.checkpoint_id and row.segment == finding.segment:
            break
        if row.status in OVER:
            break
        if not (row.role or "").startswith("new_"):
            last = row.checkpoint_id
    return last


def _probe(
    case: Case, finding: Finding | None, reproduce: str, second: Diagnosis | None
) -> Probe | None:
    """Return the two commands that decide an open finding: a second oracle, then both reports.

    A verdict on the circuit that rests on one oracle asks for a second where one is at hand. Where
    none is, the second is a trace that was recorded elsewhere.
    """
    if finding is None:
        return None
    others = [name for name in case.oracle.others if name != case.oracle.name]
    alone = finding.owner == "circuit" and finding.replay is not None and second is None
    if not finding.open and not (alone and others):
        return None
    other = others[0] if others else RECORDED
    question = finding.question or "which side is right"
    if not finding.open:
        question = f"whether {other} says so too: the verdict rests on {case.oracle.name} alone"
    if finding.failure_class == "RANKING_DIVERGENCE" and case.oracle.name != "reference":
        other = "reference"
    if other == RECORDED:
        question += "; no other oracle at hand runs this model: record one where it can run"
    folder = case.folder.parent / f"second-{'recorded' if other == RECORDED else other}"
    plain = re.sub(r" --second-report \S+", "", reproduce)
    asked = re.sub(r"(?<= --oracle )\S+", other, plain)
    asked = re.sub(r"(?<= --out )\S+", shlex.quote(str(folder)), asked)
    command = f"{asked}; {plain} --second-report {shlex.quote(str(folder / 'report.json'))}"
    return Probe(command=command, question=question)


def _coverage(case: Case, rows: list[Row]) -> Coverage:
    graph = next(iter(case.graphs.values()))
    segment_rows = [row for row in rows if case.graph(row.segment).phase == graph.phase]
    seen = {graph.site_of(row.checkpoint_id, row.role) for row in segment_rows}
    total = 0
    with_edges = 0
    without: list[str] = []
    edges = 0
    for index, op in graph.ops():
        total += 1
        sites = [Site(index, edge.name) for edge in op.results]
        edges += len(sites)
        if any(site in seen for site in sites):
            with_edges += 1
        else:
            without.append(f"{graph.step_key(index)}.{op.id}")
    return Coverage(
        ops_with_edges=with_edges,
        ops_total=total,
        edges_compared=len(seen - {None}),
        edges_total=edges,
        ops_without_edges=tuple(without),
    )


def point_of(row: Row) -> Point:
    """Return the stop of a measured row."""
    metrics = row.metrics
    assert metrics is not None, "only measured rows are points"
    return Point(
        stop=row.stop,
        checkpoint_id=row.checkpoint_id,
        role=row.role,
        segment=row.segment,
        status=row.status,
        max_abs=metrics.max_abs,
        rmse=metrics.rmse,
        relative_rmse=metrics.relative_rmse,
        exact_ratio=metrics.exact_ratio,
        budget=None if row.gate is None else row.gate.relative_rmse,
        kernel_id=row.kernel_id,
    )


def _banner(case: Case, rows: list[Row]) -> str:
    if case.report is None:
        return f"no edges compared — {case.oracle.name}"
    within = sum(row.status not in OVER for row in rows)
    tail = case.report.banner.split(" edges within gate", 1)[1]
    return f"{within}/{len(rows)} edges within gate{tail}"


def _scope(case: Case) -> dict[str, Any]:
    manifest = case.subject.manifest
    return {
        "circuit": f"{manifest.circuit}@{manifest.circuit_version}",
        "dtype": case.subject.dtype,
        "rows": len(case.request.tokens),
        "tokens": sum(map(len, case.request.tokens)),
        "decode_steps": len(case.request.forced),
        "segments": list(case.request.segments),
        "oracle": case.oracle.name,
    }


def _policy(finding: Finding | None) -> dict[str, str]:
    owner = None if finding is None else finding.fix_owner
    if owner is None:
        return {}
    return {"owner": owner, "where": ARCHITECTURE_POLICY[owner]}


def _progression(finding: Finding | None) -> tuple[str, ...]:
    if finding is None:
        return ()
    at = finding.checkpoint_id or "the first divergent edge"
    return (
        "execution policy: both sides run the same forwards",
        "cache state before attention maths",
        f"fix {at}",
        "rerun from the last passing checkpoint: `cke xray --since REPORT`",
    )
