"""A campaign file: what is measured, run to an artifact, and resumed where it stopped.

The order is the laws': environment, capture, zero baseline by a second load, candidates, then
assembly. Non-goal: opening models; the caller gives a function that does.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cke.fidelity.artifact import Campaign, assemble
from cke.fidelity.capture import MANIFEST, CaptureRequest, Storage, capture
from cke.fidelity.capture_reader import Capture
from cke.fidelity.environment import environment_report
from cke.fidelity.gather import gather
from cke.fidelity.receipt import Receipt
from cke.fidelity.refusal import refuse
from cke.fidelity.score import REPORT, score, utc_now
from cke.fidelity.settings import BLOCK, Mode
from cke.fidelity.subject import Subject
from cke.fidelity.suite_reader import Suite, load_suite
from cke.schemas.reading import convert, read_json

Open = Callable[[str, Mode], Subject]
Progress = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A campaign file: `candidates` maps names to models, `excluded` says what is left out."""

    suite: str
    reference: str
    candidates: dict[str, str]
    rows: int | None = None
    storage: Storage = "hidden"
    excluded: tuple[dict[str, str], ...] = ()
    approvals: dict[str, dict[str, str]] = {}


def read_plan(path: Path) -> Plan:
    """Return the plan of a TOML file; paths in it are relative to the file."""
    try:
        value = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse("CKE873", f"expected a campaign file: {error}", file=path.name)
    return convert(value, Plan, path)


def run_campaign(
    plan: Plan, base: Path, out: Path, opened: Open, progress: Progress
) -> dict[str, Receipt]:
    """Run what is missing of a campaign into `out`, and return the candidates' receipts."""
    suite = load_suite(base / plan.suite)
    taken = _captured(plan, base, out, suite, opened, progress)
    digests = {}
    for name, source in {"baseline": plan.reference, **plan.candidates}.items():
        folder = out / "scores" / name
        if not folder.joinpath(REPORT).is_file():
            progress(f"scoring `{name}`")
            path = str(base / source)
            score(taken, suite, lambda path=path: opened(path, "eager"), folder, progress=progress)  # type: ignore[misc]
        report = read_json(folder / REPORT)
        digests[name] = report["student_weights_sha256"]
        if name == "baseline" and report["nonzero_positions"] != 0 and "1" not in plan.approvals:
            refuse("CKE876", "the zero baseline is not zero; no candidate is scored")
    assembled = Campaign(
        suite=base / plan.suite,
        capture=out / "capture",
        baseline=out / "scores" / "baseline",
        candidates={name: out / "scores" / name for name in plan.candidates},
        environment=environment_report(digests, utc_now()),
        comparator=comparator(plan),
        approvals=plan.approvals,
    )
    return assemble(assembled, out / "artifact", gather, utc_now, force=True)


def _captured(
    plan: Plan, base: Path, out: Path, suite: Suite, opened: Open, progress: Progress
) -> Capture:
    folder = out / "capture"
    if not folder.joinpath(MANIFEST).is_file():
        request = CaptureRequest(limit=plan.rows, storage=plan.storage)
        capture(opened(str(base / plan.reference), "eager"), suite, request, folder, progress)
    return Capture(folder)


def comparator(plan: Plan) -> dict[str, Any]:
    """Return how a third party scores against this reference, and what was left out and why."""
    return {
        "kind": "cke-fidelity-comparator",
        "command": "cke fidelity score CANDIDATE --capture reference --suite suite --out scores",
        "mode": "eager",
        "block_positions": BLOCK,
        "excluded_candidates": list(plan.excluded),
    }
