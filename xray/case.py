"""A diagnosis under way: the rounds of captures, what they showed, and which stages passed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.diagnosis import Round, Stage
from cke.schemas.numerical_report import Ranking, Report, Row
from cke.schemas.trace import Body, Record
from cke.xray.diff import OVER, diff_traces
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph, graph_of
from cke.xray.joins import binding_fault, metadata_fault, schedule_fault
from cke.xray.local import Bench
from cke.xray.sides import OracleSide, SubjectSide
from cke.xray.stated import stated_fault
from cke.xray.values import TraceValues
from cke.xray.weights import weights_fault

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
        self.measured: set[tuple[str, frozenset[str]]] = set()
        self.bodies: tuple[Body, Body] | None = None
        self.replayed: TraceFolder | None = None

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
        self.bodies = self.bodies or (left, right)
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
        joined = frozenset(record.checkpoint_id for record in left.records)
        finding = self._stated(theirs, joined)
        if finding is None and "weights" not in self.stages:
            finding = self._weights()
        if finding is not None:
            return finding
        self.pairs.append((mine, theirs))
        self._measure(diff_traces(mine, theirs, layers_before=self._layers_before))
        return None

    def replay_decode(self) -> None:
        """Run the subject once more, its decode steps as columns of one prefill."""
        steps = zip(*self.request.forced, strict=True)
        rows = zip(self.request.tokens, steps, strict=True)
        asked = msgspec.structs.replace(
            self.request,
            tokens=tuple(row + tuple(given) for row, given in rows),
            segments=(),
            forced=(),
            edges=frozenset({"logits"}),
        )
        self.say("a full replay of the decode steps")
        self.replayed = self.subject.capture(asked, self.folder / "replay" / "subject")

    def _stated(self, oracle: TraceFolder, joined: frozenset[str]) -> Finding | None:
        """Hold what the oracle states against its tensors, once for what is joined of a trace."""
        if (oracle.trace.body_sha256, joined) in self.measured:
            return None
        self.measured.add((oracle.trace.body_sha256, joined))
        measured, graph = self.oracle.measured(), next(iter(self.graphs.values()))
        borrowed = () if measured.tables else graph.looked_up()
        lookups = tuple(self.subject.weight(name) for name in borrowed)
        finding, count = stated_fault(oracle, measured, lookups, joined)
        row = None if finding is None else finding.row
        name = "metadata" if finding is None else "binding" if row is None else row.stage
        detail = "versions, kernels, storage, layout, and what the oracle states of itself"
        self.stage(name, finding, count, detail)
        return finding

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

    def _layers_before(self, record: Record) -> int | None:
        """Return how many layers of the graph a checkpoint outside the layers comes after."""
        graph = next(iter(self.graphs.values()))
        site = graph.site_of(record.checkpoint_id, record.role)
        if site is None or site.step < 0:
            return None
        passed = (step.layer for step in graph.steps[: site.step])
        return max((layer + 1 for layer in passed if layer is not None), default=0)

    def _measure(self, report: Report) -> None:
        self.report = report
        for row in report.rows:
            key = (row.segment, row.checkpoint_id, row.role)
            held = self.rows.get(key)
            if held is None or held.metrics is None:
                self.rows[key] = row
        for ranking in report.rankings:
            self.rankings.setdefault(ranking.segment, ranking)

    def place(self, row: Row) -> tuple[int, int]:
        """Return where a row stands: its forward, then the place of its edge in the graph."""
        graph = self.graph(row.segment)
        site = graph.site_of(row.checkpoint_id, row.role)
        order = self.order[graph.phase]
        return row.segment, order.get(site, -1) if site is not None else len(order)

    def graph(self, segment: int) -> ProgramGraph:
        """Return the graph of the phase that a segment ran."""
        return graph_of(self.graphs, self.pairs[0][0].trace.body.segments[segment])

    def ordered(self) -> list[Row]:
        """Return every measured row in execution order, with its place as its stop."""
        rows = [row for row in self.rows.values() if row.metrics is not None]
        placed = enumerate(sorted(rows, key=self.place))
        return [msgspec.structs.replace(row, stop=stop) for stop, row in placed]

    def first_over(self) -> Row | None:
        """Return the first row outside its budget."""
        return next((row for row in self.ordered() if row.status in OVER), None)

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
            self.stages["weights"].state == "passed",
        )
