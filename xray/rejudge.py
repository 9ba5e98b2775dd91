"""The finding of a bundle judged again, without the model."""

from pathlib import Path
from typing import Literal

from cke.runtime.trace_reader import read_trace
from cke.schemas.diagnosis import Counterfactual, Diagnosis, Replay
from cke.schemas.ir import Node
from cke.schemas.numerical_report import Gate, Metrics
from cke.xray.bundle_reader import KeptWeights, malformed, read_manifest
from cke.xray.changes import with_origin
from cke.xray.confirm import confirm
from cke.xray.diff import verdict_of
from cke.xray.graph import ProgramGraph
from cke.xray.joins import binding_fault, metadata_fault, schedule_fault
from cke.xray.local import Bench, judge
from cke.xray.metrics import compare
from cke.xray.registry import registry_fault
from cke.xray.replay import KernelReplayer, NotReplayable
from cke.xray.tell import error_text, replay_rows
from cke.xray.values import TraceValues


class Rejudged(Node, frozen=True):
    """What the bundle's evidence shows here; `missing` says why it shows nothing.

    `failure_class` is what the metadata shows, for a report that no op stands behind.
    """

    checkpoint_id: str | None
    outcome: Literal["same", "differs", "missing"]
    missing: str | None
    replay: Replay | None
    confirmed_by: Counterfactual | None
    program_against_kernels: Metrics | None
    failure_class: str | None = None


def rejudge(folder: Path, report: Diagnosis, evidence: str = "op") -> Rejudged:
    """Return the finding of an unpacked bundle, judged again; kernels run on this machine."""
    found = report.first_divergence
    if evidence == "metadata":
        return _join_again(folder, report)
    if found is None or found.checkpoint_id is None:
        raise malformed(folder.parent / "report.json", "its report names no edge")
    weights = KeptWeights(folder)
    manifest = read_manifest(folder / "manifest.json")
    graphs = {p.phase: ProgramGraph(manifest, p.phase) for p in manifest.graph.programs}
    subject, oracle = (TraceValues(read_trace(folder / side)) for side in ("subject", "oracle"))
    bench = Bench(graphs, subject, oracle, weights, weights.constants)
    segment = found.segment or 0
    if segment >= len(subject.segments):
        raise malformed(folder.parent / "report.json", f"forward {segment} is in no trace")
    graph = bench.graph(segment)
    site = graph.site_of(found.checkpoint_id, found.role)
    missing = None if site is not None else f"the edge `{found.checkpoint_id}`"
    judged = program = None
    if site is not None:
        try:
            made = KernelReplayer(graph, subject, weights, segment).result(site)
            captured = subject.value(graph, segment, site)
            if captured is not None and captured.shape == made.shape:
                axes = graph.edge(site).type.axes
                program = compare(captured, made, axes, bench.valid(segment, site))
            KernelReplayer(graph, oracle, weights, segment).result(site)
        except NotReplayable as error:
            missing = str(error)
        judged = judge(bench, segment, site) if missing is None else None
    change = None
    if judged is not None and judged.replay.says == "oracle_differs":
        outcome = confirm(bench, judged).confirmed
        change = None if outcome is None else outcome[0]
    replay = None if judged is None else judged.replay
    return Rejudged(
        checkpoint_id=found.checkpoint_id,
        outcome="missing" if missing else _outcome(report, replay, change, program),
        missing=missing,
        replay=replay,
        confirmed_by=change,
        program_against_kernels=program,
    )


def _join_again(folder: Path, report: Diagnosis) -> Rejudged:
    """Return what the metadata shows, and for a report with numbers what its own rows say."""
    found = report.first_divergence
    manifest = read_manifest(folder / "manifest.json")
    fault = registry_fault(manifest)
    missing = None
    if fault is None and (folder / "subject").is_dir():
        mine, theirs = (read_trace(folder / side).trace.body for side in ("subject", "oracle"))
        fault = (
            binding_fault(mine, theirs)
            or schedule_fault(mine, theirs)
            or metadata_fault(manifest, mine, theirs)
        )
    name = None if fault is None else fault.failure_class
    outcome: Literal["same", "differs", "missing"] = "differs"
    if found is None:
        outcome = "same" if fault is None and _verdict(report) == report.verdict else "differs"
    elif fault is not None:
        at = (found.failure_class, found.checkpoint_id)
        outcome = "same" if (name, fault.checkpoint_id) == at else "differs"
    else:
        outcome, missing = "missing", f"what the {found.stage} stage looked at"
    return Rejudged(
        checkpoint_id=None if found is None else found.checkpoint_id,
        outcome=outcome,
        missing=missing,
        replay=None,
        confirmed_by=None,
        program_against_kernels=None,
        failure_class=name,
    )


def _verdict(report: Diagnosis) -> str:
    flips = any(ranking.flips for ranking in report.rankings)
    return verdict_of(flips, (point.status for point in report.points))


def _outcome(
    report: Diagnosis,
    replay: Replay | None,
    change: Counterfactual | None,
    program: Metrics | None,
) -> Literal["same", "differs"]:
    found = report.first_divergence
    assert found is not None
    before = None if found.replay is None else found.replay.says
    after = None if replay is None else replay.says
    if found.replay is None:
        # the running program against its own kernels is then the finding
        return "same" if program is not None and _over(program, found.gate) else "differs"
    old, new = (
        None if item is None else (item.what, item.new) for item in (found.confirmed_by, change)
    )
    return "same" if (before, old) == (after, new) else "differs"


def _over(metrics: Metrics, gate: Gate | None) -> bool:
    error = metrics.relative_rmse
    limit = 0.0 if gate is None else gate.relative_rmse
    return bool(metrics.mismatched_nonfinite) or (error is not None and error > limit)


def told(result: Rejudged) -> str:
    """Return the result as a person reads it."""
    if result.missing is not None:
        return (
            f"{result.checkpoint_id or 'The finding'} cannot be judged from the bundle: "
            f"{result.missing} is not in it.\nRun the command of report.md with the model."
        )
    if result.replay is None and result.program_against_kernels is None:
        what = result.failure_class or "nothing that is wrong"
        again = "the same as" if result.outcome == "same" else "another result than"
        return f"The metadata was joined again and shows {what}: {again} the report's."
    lines = [
        f"{result.checkpoint_id}, judged again from the bundle: "
        + ("the same finding." if result.outcome == "same" else "another result than the report's.")
    ]
    if result.replay is not None:
        for left, metrics, good in replay_rows(result.replay):
            lines.append(f"  {left:<34} {'agrees' if good else 'DIFFERS':<8} {error_text(metrics)}")
    if result.program_against_kernels is not None:
        text = error_text(result.program_against_kernels)
        lines.append(f"  {'running program / its kernels':<43} {text}")
    if result.confirmed_by is not None:
        change = result.confirmed_by
        lines.append(
            f"  closes the gap: {with_origin(change)}, "
            f"{change.before:.3g} becomes {change.after:.3g}"
        )
    return "\n".join(lines)
