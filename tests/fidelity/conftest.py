"""One tiny campaign, measured once: a suite, a capture, a baseline and candidates of a Llama."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cke.api import load
from cke.api.fidelity import open_subject, quantise, subject_of
from cke.fidelity.artifact import Campaign, assemble
from cke.fidelity.capture import CaptureRequest, capture
from cke.fidelity.capture_reader import Capture
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.environment import environment_report
from cke.fidelity.gather import gather
from cke.fidelity.receipt import Receipt, judge
from cke.fidelity.score import score
from cke.fidelity.subject import Subject
from cke.fidelity.suite import SuiteRequest, TokenizerIdentity, build_suite, builtin_texts
from cke.fidelity.suite_reader import Suite, load_suite
from tests.models import TinyModel

LENGTH = 17
ROWS = 3
VOCAB = 61
SMALL = {"intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
TIMES = {
    "baseline": "2026-01-01T01:00:00+00:00",
    "int8": "2026-01-01T02:00:00+00:00",
    "nvfp4": "2026-01-01T03:00:00+00:00",
    "judged": "2026-01-02T00:00:00+00:00",
}


class Tiny(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of the campaign and what was read of them."""

    root: Path
    model: Path
    suite: Suite
    reference: Subject
    capture: Capture
    artifact: Path


def tiny_suite(out: Path, *, contexts: int = 24, length: int = LENGTH) -> Suite:
    identity = TokenizerIdentity(
        name="bytes",
        kind="bytes",
        vocab_size=64,
        unpadded_vocab_size=VOCAB,
        vocab_sha256="0" * 64,
        special_tokens={"bos": None},
    )
    build_suite(
        builtin_texts(),
        lambda text: [byte % VOCAB for byte in text.encode()],
        identity,
        SuiteRequest(contexts=contexts, length=length),
        out,
        created_utc="2026-01-01T00:00:00+00:00",
    )
    return load_suite(out)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_model: TinyModel) -> Tiny:
    """A campaign from the suite to the artifact, of a reference, int8 and nvfp4."""
    root = tmp_path_factory.mktemp("campaign")
    folder = tiny_model("llama", **SMALL)
    suite = tiny_suite(root / "suite")
    model = load(folder)
    reference = subject_of(model)
    capture(reference, suite, CaptureRequest(limit=ROWS), root / "capture")
    taken = Capture(root / "capture")
    score(taken, suite, lambda: reference, root / "baseline", clock=lambda: TIMES["baseline"])
    for name in ("int8", "nvfp4"):
        quantise(model, name, root / name)
        candidate = open_subject(root / name)
        score(
            taken,
            suite,
            lambda subject=candidate: subject,  # type: ignore[misc]
            root / f"score-{name}",
            clock=lambda moment=TIMES[name]: moment,  # type: ignore[misc]
        )
    artifact = root / "artifact"
    assemble(campaign_of(root), artifact, gather, lambda: TIMES["judged"], force=True)
    return Tiny(
        root=root,
        model=folder,
        suite=suite,
        reference=reference,
        capture=taken,
        artifact=artifact,
    )


def campaign_of(root: Path, approvals: dict[str, Any] | None = None) -> Campaign:
    """The campaign of the folders under `root`."""
    from cke.schemas.reading import read_json

    digests = {
        name: read_json(root / name / "report.json")["student_weights_sha256"]
        for name in ("baseline", "score-int8", "score-nvfp4")
    }
    return Campaign(
        suite=root / "suite",
        capture=root / "capture",
        baseline=root / "baseline",
        candidates={"int8": root / "score-int8", "nvfp4": root / "score-nvfp4"},
        environment=environment_report(digests, TIMES["judged"]),
        comparator={"kind": "cke-fidelity-comparator", "block_positions": 64},
        approvals=approvals or {},
    )


@pytest.fixture(scope="session")
def _evidence(tiny: Tiny) -> Evidence:
    found = gather(tiny.artifact, "int8")
    page = tiny.artifact.joinpath("models/int8/one-pager.md").read_text("utf-8")
    return msgspec.structs.replace(found, page=page)


@pytest.fixture
def evidence(_evidence: Evidence) -> Evidence:
    """The evidence of the int8 candidate, the page with it; free to be changed."""
    return copy.deepcopy(_evidence)


@pytest.fixture
def artifact(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of the artifact, free to be changed."""
    return Path(shutil.copytree(tiny.artifact, tmp_path / "artifact"))


Judge = Callable[[Evidence], Receipt]


def judged(evidence: Evidence) -> Receipt:
    """The receipt of evidence at the fixed time of the tests."""
    return judge(evidence, lambda: TIMES["judged"])


def lines_of(evidence: Evidence) -> set[str]:
    """Every line of the laws that does not hold."""
    return {line for item in judged(evidence).findings for line in item.lines}
