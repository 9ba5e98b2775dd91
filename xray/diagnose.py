"""The diagnosis: stages in order, then the first divergent edge, its class, its owner, its proof.

A finding in one stage stops the later ones. Captures are asked for in rounds: a sparse set, then
the edges of the first failing block, then, while nothing local explains it, of the blocks above.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from cke.runtime.schedule import CaptureRequest
from cke.schemas.diagnosis import Coverage, Diagnosis, Divergence, Point, Probe, Round, Stage
from cke.schemas.numerical_report import Curve, Ranking, Report, Row
from cke.xray.classes import ARCHITECTURE_POLICY, POLICY
from cke.xray.diff import JUMP, diff_traces
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph, Site
from cke.xray.joins import binding_fault, declared_fault, metadata_fault, schedule_fault
from cke.xray.local import BAD, Bench
from cke.xray.locate import compiled_fault, first_fault
from cke.xray.sides import OracleSide, SubjectSide
from cke.xray.values import TraceValues
from cke.xray.weights import weights_fault

STAGES = ("binding", "schedule", "metadata", "weights", "numbers", "behaviour")
MAX_GROUP = 512 << 20
Say = Callable[[str], None]
Key = tuple[int, str, str | None]


class Case:
    """One diagnosis under way: what was captured, what it showed, and which stages passed."""

    def __init__(
        self,
        subject: SubjectSide,
        oracle: OracleSide,
        request: CaptureRequest,
        folder: Path,
        say: Say = lambda text: None,
    ) -> None:
        self.subject, self.oracle = subject, oracle
        self.request, self.folder, self.say = request, folder, say
        phases = [program.phase for program in subject.manifest.graph.programs]
        self.graphs = {phase: ProgramGraph(subject.manifest, phase) for phase in phases}
        self.order = {phase: graph.order() for phase, graph in self.graphs.items()}
        self.pairs: list[tuple[Any, Any]] = []
        self.rows: dict[Key, Row] = {}
        self.rounds: list[Round] = []
        self.rankings: dict[int, Ranking] = {}
        self.banner = ""
        self.stages: dict[str, Stage] = {}
        self.report: Report | None = None

    def stage(self, name: Any, finding: Finding | None, checked: int, detail: str) -> bool:
        """Note how a stage ended; return whether it found something."""
        before = self.stages.get(name)
        count = checked + (before.checked if before else 0)
        state: Any = "broken" if finding is not None else "passed"
        self.stages[name] = Stage(name=name, state=state, checked=count, detail=detail)
        return finding is not None

    def capture(
        self, purpose: str, edges: frozenset[str] | None, layers: frozenset[int] | None
    ) -> Finding | None:
        """Capture both sides, join their metadata, then measure; return a finding of the join."""
        number = len(self.rounds)
        self.say(f"round {number + 1}: {purpose}")
        asked = msgspec.structs.replace(self.request, edges=edges, layers=layers)
        mine = self.subject.capture(asked, self.folder / f"round-{number}" / "subject")
        theirs = self.oracle.capture(asked, self.folder / f"round-{number}" / "oracle")
        left, right = mine.trace.body, theirs.trace.body
        self.rounds.append(
            Round(
                purpose=purpose,
                layers=None if layers is None else tuple(sorted(layers)),
                edges=None if edges is None else tuple(sorted(edges)),
                subject_tensors=len(left.records),
                oracle_tensors=len(right.records),
            )
        )
        finding = binding_fault(left, right)
        if self.stage("binding", finding, 1, "tokens, identity, repeatable and neutral captures"):
            return finding
        finding = schedule_fault(left, right)
        count = len(left.segments)
        if self.stage("schedule", finding, count, "segmentation, positions, cache indices"):
            return finding
        finding = metadata_fault(self.subject.manifest, left, right)
        count = len(left.records)
        if self.stage("metadata", finding, count, "versions, kernels, storage, layout"):
            return finding
        if "weights" not in self.stages:
            finding = self._weights()
            if finding is not None:
                return finding
        self.pairs.append((mine, theirs))
        self._measure(diff_traces(mine, theirs))
        return None

    def _weights(self) -> Finding | None:
        oracle = self.oracle.weights()
        if oracle is None:
            self.stages["weights"] = Stage(
                name="weights",
                state="not_available",
                checked=0,
                detail="the oracle's loaded weights are not at hand",
            )
            return None
        self.say(f"comparing {len(oracle)} loaded weights")
        graph = next(iter(self.graphs.values()))
        finding, count = weights_fault(graph, self.subject, oracle, self.subject.dtype)
        self.stage("weights", finding, count, "bound weights against those that the oracle loaded")
        return finding

    def _measure(self, report: Report) -> None:
        self.report = report
        for row in report.rows:
            self.rows.setdefault((row.segment, row.checkpoint_id, row.role), row)
        for ranking in report.rankings:
            self.rankings.setdefault(ranking.segment, ranking)

    def place(self, row: Row) -> tuple[int, int]:
        """Return where a row stands: its forward, then the place of its edge in the graph."""
        graph = self._graph(row.segment)
        site = graph.site_of(row.checkpoint_id, row.role)
        order = self.order[graph.phase]
        return row.segment, order.get(site, -1) if site is not None else len(order)

    def _graph(self, segment: int) -> ProgramGraph:
        first = self.pairs[0][0].trace.body.segments[segment]
        phase = "prefill" if len(first.tokens[0]) > 1 else "decode"
        return self.graphs.get(phase) or next(iter(self.graphs.values()))

    def ordered(self) -> list[Row]:
        """Return every measured row in execution order."""
        rows = [row for row in self.rows.values() if row.metrics is not None]
        return sorted(rows, key=self.place)

    def first_over(self) -> Row | None:
        """Return the first row outside its budget."""
        return next((row for row in self.ordered() if row.status in BAD), None)

    def bench(self) -> Bench:
        """Return both sides' values of every round, ready to replay."""
        subjects = [mine for mine, _ in reversed(self.pairs)]
        oracles = [theirs for _, theirs in reversed(self.pairs)]
        return Bench(
            self.graphs,
            TraceValues(*subjects),
            TraceValues(*oracles),
            self.subject,
            self.subject.constants,
        )


def diagnose(
    subject: SubjectSide,
    oracle: OracleSide,
    request: CaptureRequest,
    folder: Path,
    *,
    reproduce: str,
    second: Diagnosis | None = None,
    second_sha256: str | None = None,
    say: Say = lambda text: None,
) -> Diagnosis:
    """Return the diagnosis; captures are written under `folder`, round by round."""
    case = Case(subject, oracle, request, folder, say)
    finding = declared_fault(
        subject.manifest, subject.dtype, oracle.name, oracle.dtype, oracle.weight_dtypes
    )
    if finding is not None:
        case.stage("metadata", finding, 1, "declared metadata, before either model ran")
    else:
        finding = _run(case)
    if finding is not None and second is not None:
        finding = _with_second(finding, second)
    return _report(case, finding, reproduce, second, second_sha256)


def _run(case: Case) -> Finding | None:
    finding = case.capture("sparse: the results of every block", sparse_edges(case), None)
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


def sparse_edges(case: Case) -> frozenset[str]:
    """Return the names of the sparse set: what each block gives to the next."""
    names: set[str] = set()
    for graph in case.graphs.values():
        for index, step in enumerate(graph.steps):
            function = graph.functions[step.function]
            for result in function.results:
                for point in graph.points_of(Site(index, result)):
                    names.add(_plain_name(point.checkpoint_id))
    return frozenset(names | {"logits"} & _names(case))


def _names(case: Case) -> set[str]:
    return {item.checkpoint.name for item in case.subject.manifest.checkpoints}


def _plain_name(checkpoint_id: str) -> str:
    if not checkpoint_id.startswith("layer."):
        return checkpoint_id
    return checkpoint_id.split(".", 2)[2]


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


def _localise(case: Case, over: Row) -> Finding | None:
    """Return the finding of the first failing block, or of one above it."""
    graph = case._graph(over.segment)
    site = graph.site_of(over.checkpoint_id, over.role)
    if site is None:
        return _open(case, over, "which op of the circuit makes this checkpoint")
    index = site.step
    while index >= 0:
        finding = _block(case, graph, index)
        if finding is not None:
            return finding
        over = case.first_over() or over
        bench = case.bench()
        for segment in range(over.segment + 1):
            if case._graph(segment).phase != graph.phase:
                continue
            finding = first_fault(bench, segment, index)
            if finding is not None:
                return finding
        for segment in range(over.segment + 1):
            if case._graph(segment).phase == graph.phase:
                finding = compiled_fault(bench, segment, index)
                if finding is not None:
                    return finding
        index -= 1
    return _open(
        case,
        over,
        "no op alone explains it: a run of both sides in a wider dtype tells accumulated rounding "
        "from a fault",
    )


def _block(case: Case, graph: ProgramGraph, index: int) -> Finding | None:
    """Capture the edges of a block, unless they are there; return a finding of the join."""
    step = graph.steps[index]
    names = block_edges(graph, index)
    layer = step.layer
    known = {
        (_plain_name(name), layer_of) for _, name, _ in case.rows for layer_of in (_layer(name),)
    }
    if all((name, layer) in known for name in names):
        return None
    layers = frozenset() if layer is None else frozenset((layer,))
    where = graph.step_key(index)
    return case.capture(f"the edges of `{where}`", names, layers)


def _layer(checkpoint_id: str) -> int | None:
    return int(checkpoint_id.split(".", 2)[1]) if checkpoint_id.startswith("layer.") else None


def _open(case: Case, over: Row, question: str) -> Finding:
    return Finding(
        failure_class=None,
        checkpoint_id=over.checkpoint_id,
        role=over.role,
        segment=over.segment,
        kernel_id=over.kernel_id,
        metrics=over.metrics,
        gate=over.gate,
        because=("the checkpoint is outside its budget, and every op that can be replayed agrees",),
        question=question,
    )


def _behaviour(case: Case) -> Finding | None:
    case.stage("numbers", None, len(case.ordered()), "checkpoints against their budgets")
    flip = next((item for item in case.rankings.values() if item.flips), None)
    checked = sum(item.positions for item in case.rankings.values())
    if flip is None:
        case.stage("behaviour", None, checked, "first token at every position")
        return None
    row, position = flip.flips[0]
    finding = Finding(
        failure_class=None,
        checkpoint_id="logits",
        segment=flip.segment,
        because=(
            f"the first token differs at row {row}, position {position} of forward "
            f"{flip.segment}, with every tensor inside its budget",
        ),
        question="whether the two largest logits are a tie within the budget",
    )
    case.stage("behaviour", finding, checked, "first token at every position")
    return finding


def _with_second(finding: Finding, second: Diagnosis) -> Finding:
    """Return the finding with what a second oracle says of the same edge."""
    circuit = finding.owner == "circuit" or finding.failure_class is None
    if finding.replay is None or not circuit:
        return finding
    same = [point for point in second.points if point.checkpoint_id == finding.checkpoint_id]
    if not same:
        return finding
    if all(point.status not in BAD for point in same):
        return msgspec.structs.replace(
            finding,
            failure_class="REFERENCE_DEFECT",
            owner="reference_adapter",
            because=(
                *finding.because,
                f"the second oracle ({second.oracle.get('producer')}) and the float64 definition "
                "both side with the subject",
            ),
            question=None,
        )
    return msgspec.structs.replace(
        finding,
        because=(
            *finding.because,
            f"the second oracle ({second.oracle.get('producer')}) differs from the subject too",
        ),
    )


def _report(
    case: Case,
    finding: Finding | None,
    reproduce: str,
    second: Diagnosis | None,
    second_sha256: str | None,
) -> Diagnosis:
    rows = case.ordered()
    flips = [item for item in case.rankings.values() if item.flips]
    status = _status(finding, rows)
    verdict: Any = None
    if flips:
        verdict = "behavioral_divergence"
    elif status == "complete" or (status == "incomplete" and rows and finding is not None):
        over = any(row.status in BAD for row in rows)
        verdict = "cosmetic_drift" if over else "pass_within_gate"
        verdict = None if status == "incomplete" and verdict == "pass_within_gate" else verdict
    stops = {id(row): stop for stop, row in enumerate(rows)}
    body = None if case.report is None else case.report
    return Diagnosis(
        status=status,
        verdict=verdict,
        banner=_banner(case, rows),
        scope=_scope(case),
        subject={} if body is None else body.subject,
        oracle={"producer": case.oracle.name, "dtype": case.oracle.dtype}
        if body is None
        else body.oracle,
        stages=_stages(case, finding),
        first_divergence=None if finding is None else _divergence(case, finding, rows),
        next_probe=_probe(case, finding, reproduce),
        coverage=_coverage(case, rows),
        rounds=tuple(case.rounds),
        points=tuple(_point(row, stops[id(row)]) for row in rows),
        byte_exact_prefix=next(
            (i for i, row in enumerate(rows) if not row.metrics or not row.metrics.byte_exact),
            len(rows),
        ),
        first_non_exact=next((stops[id(r)] for r in rows if r.status != "exact"), None),
        first_over_gate=next((stops[id(r)] for r in rows if r.status in BAD), None),
        curves=tuple(_curve(rows, metric) for metric in ("max_abs", "rmse")),
        rankings=tuple(case.rankings[key] for key in sorted(case.rankings)),
        first_flip=None if not flips else (flips[0].segment, *flips[0].flips[0]),
        second_report=None
        if second is None
        else {
            "sha256": second_sha256,
            "oracle": second.oracle.get("producer"),
            "verdict": second.verdict,
        },
        architecture_policy={"rule": POLICY, **_policy(finding)},
        fix_progression=_progression(finding, rows),
        reproduce=reproduce,
    )


def _status(finding: Finding | None, rows: list[Row]) -> Any:
    if finding is None:
        return "complete" if rows else "incomplete"
    row = finding.row
    if row is None:
        return "incomplete"
    if row.name in ("CAPTURE_NOT_NEUTRAL", "RUNTIME_NOT_REPEATABLE"):
        return "rejected"
    return "complete" if finding.metrics is not None else "stopped"


def _stages(case: Case, finding: Finding | None) -> tuple[Stage, ...]:
    found: list[Stage] = []
    broken = False
    for name in STAGES:
        stage = case.stages.get(name)
        if stage is None or broken:
            stage = Stage(name=name, state="not_reached", checked=0, detail="")  # type: ignore[arg-type]
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
        layer=None if finding.checkpoint_id is None else _layer(finding.checkpoint_id),
        phase=phase,
        segment=finding.segment,
        op=finding.op,
        operator=finding.operator,
        kernel_id=finding.kernel_id,
        source=finding.source,
        failure_class=finding.failure_class,
        stage=stage,
        fix_owner=None if row is None else row.owner(finding.owner),
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
        if row.status in BAD:
            break
        last = row.checkpoint_id
    return last


def _probe(case: Case, finding: Finding | None, reproduce: str) -> Probe | None:
    if finding is None or finding.failure_class is not None:
        return None
    other = "llamacpp" if case.oracle.name == "pytorch" else "pytorch"
    command = reproduce.replace(f"--oracle {case.oracle.name}", f"--oracle {other}")
    return Probe(command=command, question=finding.question or "which side is right")


def _coverage(case: Case, rows: list[Row]) -> Coverage:
    graph = next(iter(case.graphs.values()))
    segment_rows = [row for row in rows if case._graph(row.segment).phase == graph.phase]
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


def _point(row: Row, stop: int) -> Point:
    metrics = row.metrics
    assert metrics is not None, "only measured rows are points"
    return Point(
        stop=stop,
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


def _curve(rows: list[Row], metric: str) -> Curve:
    jumps: list[int] = []
    breaks: list[int] = []
    before: float | None = None
    for stop, row in enumerate(rows):
        value: float | None = getattr(row.metrics, metric)
        if value is None:
            continue
        if before is not None and before > 0 and value > JUMP * before:
            jumps.append(stop)
        if before is not None and value < before:
            breaks.append(stop)
        before = value
    return Curve(metric=metric, jumps=tuple(jumps), monotonicity_breaks=tuple(breaks))


def _banner(case: Case, rows: list[Row]) -> str:
    if case.report is None:
        return f"no edges compared — {case.oracle.name}"
    within = sum(row.status not in BAD for row in rows)
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
    row = None if finding is None else finding.row
    if finding is None or row is None:
        return {}
    owner = row.owner(finding.owner)
    return {"owner": owner, "where": ARCHITECTURE_POLICY[owner]}


def _progression(finding: Finding | None, rows: list[Row]) -> tuple[str, ...]:
    if finding is None:
        return ()
    at = finding.checkpoint_id or "the first divergent edge"
    return (
        "execution policy: both sides run the same forwards",
        "cache state before attention maths",
        f"fix {at}",
        "rerun from the last passing checkpoint: `cke xray --since REPORT`",
    )
