"""Laws 11 to 13: the freeze, the reusable reference, and recorded deviations."""

from typing import Any

from cke.fidelity.checks.evidence import Document, Evidence, NotApplicable, Outcome, Problem, field
from cke.fidelity.fields import MISSING, mismatches
from cke.fidelity.freeze import moment, receipt_problems

NEEDED = {
    "the token suite": "suite/manifest.json",
    "the suite's tokens": "suite/tokens/",
    "reference distributions": "reference/rows/",
    "the LM head": "reference/head.safetensors",
    "the capture's manifest": "reference/manifest.json",
    "the comparator": "comparator.json",
}
"""What a third party needs, and where an artifact holds it."""
APPROVAL = ("approver", "justification", "timestamp")


def freeze_first(evidence: Evidence) -> Outcome:
    """Law 11."""
    partition = field(evidence.report, "partition")
    suite = evidence.suite
    scored = {item.get("context_id") for item in evidence.report.get("per_context", [])}
    if suite is not None:
        held = {item.context_id for item in suite.selected("qualification")}
        if partition == "analysis":
            if scored & held:
                return [Problem("11.1", "an analysis run holds qualification contexts")]
            return []
        if partition == "qualification" and not scored <= held:
            return [Problem("11.5", "analysis contexts are labelled qualification")]
    if partition not in ("analysis", "qualification", "all"):
        return [Problem("11.1", "the report names no partition")]
    found = receipt_problems(
        evidence.report.get("freeze_receipt"),
        evidence.parameters,
        evidence.report.get("scored_at"),
    )
    problems = [Problem(_freeze_line(text), text) for text in found]
    if evidence.parameters is None and not problems:
        problems.append(Problem("11.4", "the frozen parameters are not at hand to be compared"))
    return problems


def _freeze_line(text: str) -> str:
    if "got none" in text:
        return "11.2"
    return "11.3" if "time" in text or "before the run" in text else "11.4"


def reusable_reference(evidence: Evidence) -> list[Problem]:
    """Law 12."""
    contents = evidence.contents
    if contents is None:
        return [Problem("12.1", "there is no artifact folder")]
    problems = [
        Problem("12.1", f"the artifact lacks {what}, `{path}`")
        for what, path in NEEDED.items()
        if not any(item == path or item.startswith(path) for item in contents.paths)
    ]
    problems += [Problem("12.2", text) for text in contents.checksum_problems]
    if evidence.reference is None or evidence.manifest is None:
        problems.append(Problem("12.3", "the reference is published without its manifest"))
    else:
        problems += [
            Problem("12.3", text) for text in mismatches(evidence.reference, evidence.manifest)
        ]
    return problems


def restricted_reference(evidence: Evidence) -> list[Problem]:
    """Return why the reference may not be left out: only a licence that says so, with hashes."""
    found = evidence.contents.restriction if evidence.contents else None
    hashes = field(found, "file_hashes")
    stated = isinstance(field(found, "restriction"), str) and field(found, "licence") is not MISSING
    if not stated or not isinstance(hashes, dict) or not hashes:
        return [Problem("12.5", "no licence restriction with hashes of the reference is recorded")]
    return []


def approvals_complete(evidence: Evidence) -> Outcome:
    """Law 13, before the receipt: every approval names who, why and when."""
    problems = []
    for key, entry in evidence.approvals.items():
        number = approved_law(key)
        if number is None:
            problems.append(Problem("13.1", f"the approval `{key}` names no law"))
        problems += [Problem("13.1", f"the approval `{key}` {t}") for t in approval_problems(entry)]
    if not evidence.approvals:
        return NotApplicable("no deviation is recorded")
    return problems


def approval_problems(entry: Any) -> list[str]:
    """Return what an approval lacks."""
    if not isinstance(entry, dict):
        return ["is no record"]
    problems = [
        f"has no `{name}`"
        for name in APPROVAL
        if not isinstance(entry.get(name), str) or not entry[name].strip()
    ]
    if not problems and moment(entry["timestamp"]) is None:
        problems.append("has no time with a zone")
    return problems


def approved_law(key: Any) -> int | None:
    """Return the law of an approval's key, `12` or `law_12`; None for any other."""
    text = str(key).removeprefix("law_")
    return int(text) if text.isdigit() and 1 <= int(text) <= 17 else None


def rendered(page: str, deviations: dict[int, Document], mean: Any) -> list[Problem]:
    """Return which deviations do not stand beside the number, in the line of the mean."""
    lines = [line for line in page.splitlines() if repr(mean) in line]
    problems = []
    for number, entry in sorted(deviations.items()):
        parts = (entry["approver"], entry["justification"], f"Law {number}")
        if not lines or not all(all(part in line for part in parts) for line in lines):
            text = f"the deviation from Law {number} does not stand beside every mean"
            problems.append(Problem("13.2", text))
    return problems
