"""Laws 6, 7 and 10: what computed a number, how it was stored, and what it compares with."""

import re
from typing import Any

from cke.fidelity.capture import probe_problems
from cke.fidelity.checks.evidence import Document, Evidence, Problem, field
from cke.fidelity.fields import MISSING, key_of, key_problems
from cke.fidelity.profiles import ABSENT, profiles, stack_fields

EMPTY: tuple[Any, ...] = (None, "", "unknown", [], {})
CLAIMS = re.compile(r"\b(accura\w+|capabilit\w+|quality|smarter|better model)\b", re.IGNORECASE)
VERDICTS = ("threshold", "verdict", "pass_mark", "acceptance", "grade")
"""Fields by which a report would judge itself against an absolute mark."""
NOT_MEASURED = "## What is not measured"


def provenance(evidence: Evidence) -> list[Problem]:
    """Law 6."""
    report = evidence.environment
    if not isinstance(report, dict):
        return [Problem("6.1", "there is no environment report")]
    problems = _populated(report)
    known = field(report, "checkpoints")
    digests = set(known.values()) if isinstance(known, dict) else set()
    for name in ("student_weights_sha256", "reference_weights_sha256"):
        if field(evidence.report, name) not in digests:
            problems.append(Problem("6.3", f"the environment report lacks the report's `{name}`"))
    head = field(evidence.live, "commit")
    if head is MISSING or head in EMPTY or field(report, "commit") != head:
        problems.append(
            Problem("6.9", "the environment report is of another commit than this tree")
        )
    if evidence.contents is not None:
        copies = evidence.contents.environment_copies
        if not copies or len(set(copies.values())) != 1 or None in copies.values():
            problems.append(Problem("6.10", "not every model root has the same environment report"))
    return problems


def _populated(report: Document) -> list[Problem]:
    profile = str(field(report, "stack_profile"))
    if profile not in profiles():
        return [Problem("6.12", f"the environment report names no stack profile: `{profile}`")]
    problems = []
    required = profiles()[profile].present
    for name, value in stack_fields(profile, report).items():
        stated_absent = isinstance(value, str) and value.startswith(ABSENT)
        if name in required and stated_absent:
            problems.append(Problem("6.12", f"`{name}` is called absent where the stack has it"))
        elif value in EMPTY:
            line = "6.2" if name in ("gpu", "driver", "torch", "vllm", "commit") else "6.1"
            problems.append(Problem(line, f"`{name}` of the environment report is empty"))
    return problems


def storage_integrity(evidence: Evidence) -> list[Problem]:
    """Law 7."""
    manifest = evidence.manifest or {}
    hashes = manifest.get("file_hashes")
    found = probe_problems(
        manifest.get("storage"),
        manifest.get("replay_probe"),
        hashes if isinstance(hashes, dict) else {},
    )
    lines = {"hidden storage has no replay probe": "7.1"}
    return [Problem(lines.get(text, "7.2"), text) for text in found]


def comparability(evidence: Evidence) -> list[Problem]:
    """Law 10."""
    report = evidence.report
    problems = [Problem("10.1", text) for text in key_problems(key_of(report))]
    if field(report, "suite_id") in (MISSING, None, ""):
        problems.append(Problem("10.4", "the run recorded no suite"))
    digest = field(report, "runtime.numerics_digest")
    if digest in (MISSING, None, "") or digest != field(evidence.live, "numerics_digest"):
        problems.append(Problem("10.6", "the number cannot be shown to be of the code as it is"))
    problems += [
        Problem("10.8", f"`{name}` would judge a number that has no absolute scale")
        for name in VERDICTS
        if name in report
    ]
    return problems


def page_claims(page: str) -> list[Problem]:
    """Return where a page presents a number as what it is not."""
    measured = page.partition(NOT_MEASURED)
    rest = measured[0] + measured[2].partition("\n## ")[2]
    found = CLAIMS.search(rest)
    return [Problem("10.9", f"the page speaks of `{found.group()}`")] if found else []
