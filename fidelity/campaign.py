"""A campaign: a plan run to an artifact, resumed where it stopped.

The order is the laws': suite, capture, zero baseline by a second process, candidates, the paired
runs of a routed reference, then assembly. Non-goal: opening models; the caller gives `Tools`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import cke
from cke.errors.files import write_atomically
from cke.fidelity.artifact import Campaign, assemble
from cke.fidelity.capture import MANIFEST, CaptureRequest, capture
from cke.fidelity.capture_reader import Capture
from cke.fidelity.environment import environment_report
from cke.fidelity.gather import gather
from cke.fidelity.paired import TRACE, capture_trace, run_paired
from cke.fidelity.plan import CandidatePlan, Plan, document, located
from cke.fidelity.receipt import Receipt
from cke.fidelity.refusal import refuse
from cke.fidelity.score import REPORT, score, utc_now
from cke.fidelity.settings import BLOCK
from cke.fidelity.subject import Subject
from cke.fidelity.suite import SuiteRequest, pretty
from cke.fidelity.suite_reader import load_suite
from cke.schemas.reading import read_json

Progress = Callable[[str], None]
ROUTING = "routing.json"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign does with models.

    `open` gives a subject as a plan says, `make` writes a format of a model and returns where,
    `freeze` builds a suite with a model's tokenizer, `digest` is of a model's weights on disk.
    """

    open: Callable[[Path, CandidatePlan], Subject]
    make: Callable[[Path, CandidatePlan, Path], Path]
    freeze: Callable[[Path, SuiteRequest, Path], str]
    digest: Callable[[Path], str]


def run_campaign(
    plan: Plan, base: Path, out: Path, tools: Tools, progress: Progress
) -> dict[str, Receipt]:
    """Run what is missing of a campaign into `out`, and return the candidates' receipts."""
    return _Run(plan, base, out, tools, progress).whole()


class _Run:
    """One campaign's folders: suite, capture, candidates, scores, trace, artifact."""

    def __init__(self, plan: Plan, base: Path, out: Path, tools: Tools, progress: Progress) -> None:
        self.plan, self.base, self.out, self.tools = plan, base, out, tools
        self.progress = progress
        self.reference = located(plan.reference, base)
        self.approvals = document(plan.approvals, base) or {}
        self.suite_folder = self._suite_folder()
        self.suite = load_suite(self.suite_folder)

    def whole(self) -> dict[str, Receipt]:
        """Run every part, and assemble."""
        taken = self._capture()
        baseline = self._baseline(taken)
        found = {name: self._model(name) for name in self.plan.candidates}
        freeze = document(self.plan.freeze_receipt, self.base)
        for name, path in found.items():
            self._score(name, path, taken, freeze)
        if taken.manifest["reference_routing"] is not None:
            self._paired(found, taken)
        digests = {name: self.tools.digest(path) for name, path in found.items()}
        assembled = Campaign(
            suite=self.suite_folder,
            capture=self.out / "capture",
            baseline=self.out / "scores" / "baseline",
            candidates={name: self.out / "scores" / name for name in found},
            environment=environment_report(
                {"baseline": baseline["student_weights_sha256"], **digests}, utc_now()
            ),
            comparator=comparator(self.plan),
            approvals=self.approvals,
            weights=digests,
            documents={
                "repeat-study.json": document(self.plan.repeat_study, self.base),
                "frozen-parameters.json": document(self.plan.frozen_parameters, self.base),
            },
        )
        return assemble(assembled, self.out / "artifact", gather, utc_now, force=True)

    def _suite_folder(self) -> Path:
        if isinstance(self.plan.suite, str):
            return located(self.plan.suite, self.base)
        folder = self.out / "suite"
        if not folder.is_dir():
            self.progress("freezing the suite")
            self.tools.freeze(self.reference, self.plan.suite.request, folder)
        return folder

    def _capture(self) -> Capture:
        folder = self.out / "capture"
        if not folder.joinpath(MANIFEST).is_file():
            request = CaptureRequest(
                partition=self.plan.partition, limit=self.plan.rows, storage=self.plan.storage
            )
            subject = self.tools.open(self.reference, CandidatePlan())
            capture(subject, self.suite, request, folder, self.progress)
        return Capture(folder)

    def _baseline(self, taken: Capture) -> dict[str, Any]:
        """The reference against its own capture, scored by another process."""
        folder = self.out / "scores" / "baseline"
        if not folder.joinpath(REPORT).is_file():
            self.progress("scoring the reference against its capture, in a second process")
            receipt = self.plan.freeze_receipt
            score_apart(
                *(self.reference, taken.folder, self.suite_folder, folder),
                None if receipt is None else located(receipt, self.base),
            )
        report: dict[str, Any] = read_json(folder / REPORT)
        problems = []
        if report.get("scored_by") == taken.manifest.get("captured_by"):
            problems.append("the zero baseline was scored by the process that took the capture")
        if report["nonzero_positions"] != 0 and not {"1", "law_1"} & set(self.approvals):
            problems.append("the zero baseline is not zero; no candidate is scored")
        if problems:
            refuse("CKE876", problems)
        self._check_grid(report)
        return report

    def _check_grid(self, report: dict[str, Any]) -> None:
        """Refuse a candidate in the reference's own format: its error would be that of nothing."""
        stored = {str(layer["format"]).lower() for layer in report["inspection"]["layers"]}
        names = [n for n in self.plan.candidates if self.plan.planned(n).format in stored]
        if names:
            refuse(
                "CKE880",
                [
                    f"`{name}` is of the reference's own grid, where its error is zero by "
                    "construction: list it under `excluded`, with the reason"
                    for name in names
                ],
            )

    def _model(self, name: str) -> Path:
        """Where a candidate is; one that the campaign makes keeps the digest that it got then."""
        planned = self.plan.planned(name)
        if planned.path is not None:
            path, pinned = located(planned.path, self.base), planned.weights_sha256
        else:
            folder = self.out / "candidates" / name
            record = folder.with_name(f"{name}.made.json")
            if not record.is_file():
                self.progress(f"making `{name}`")
                made = self.tools.make(self.reference, planned, folder)
                facts = {
                    "path": made.relative_to(folder.parent).as_posix(),
                    "weights_sha256": self.tools.digest(made),
                }
                write_atomically(record, pretty(facts))
            facts = read_json(record)
            path = folder.parent / facts["path"]
            pinned = planned.weights_sha256 or facts["weights_sha256"]
        if pinned is not None and self.tools.digest(path) != pinned:
            refuse("CKE880", f"`{name}` holds other weights than the ones it is named for")
        return path

    def _score(self, name: str, path: Path, taken: Capture, freeze: dict[str, Any] | None) -> None:
        folder = self.out / "scores" / name
        if folder.joinpath(REPORT).is_file():
            return
        self.progress(f"scoring `{name}`")
        planned = self.plan.planned(name)

        def opened() -> Subject:
            subject = self.tools.open(path, planned)
            subject.identity = msgspec.structs.replace(subject.identity, name=name)
            return subject

        score(taken, self.suite, opened, folder, freeze=freeze, progress=self.progress)

    def _paired(self, found: dict[str, Path], taken: Capture) -> None:
        trace = self.out / "trace"
        if not trace.joinpath(TRACE).is_file():
            self.progress("tracing the teacher's experts")
            capture_trace(
                self.tools.open(self.reference, CandidatePlan()), taken, self.suite, trace
            )
        for name, path in found.items():
            folder = self.out / "scores" / name
            if folder.joinpath(ROUTING).is_file():
                continue
            self.progress(f"running the pair of `{name}`: two natural, two forced, two BxQ")
            subject = self.tools.open(path, self.plan.planned(name))
            result = run_paired(subject, taken, self.suite, trace, read_json(folder / REPORT))
            write_atomically(folder / ROUTING, pretty(result))


def score_apart(
    model: Path, taken: Path, suite: Path, out: Path, freeze_receipt: Path | None = None
) -> None:
    """Score a model in a process of its own; CKE876 with its message when it fails."""
    folders = {"--capture": taken, "--suite": suite, "--out": out}
    folders |= {} if freeze_receipt is None else {"--freeze-receipt": freeze_receipt}
    options = [str(item) for name, path in folders.items() for item in (name, path.resolve())]
    root = Path(cke.__file__).parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "cke", "fidelity", "score", str(model.resolve()), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-12:]
        refuse("CKE876", "the process that scores the baseline failed: " + " | ".join(last))


def comparator(plan: Plan) -> dict[str, Any]:
    """Return how a third party scores against this reference, and what was left out and why."""
    return {
        "kind": "cke-fidelity-comparator",
        "command": "cke fidelity score CANDIDATE --capture reference --suite suite --out scores",
        "mode": "eager",
        "block_positions": BLOCK,
        "excluded_candidates": list(plan.excluded),
    }
