"""When a law's failure may stand as a recorded deviation: each law's own stated case, no other."""

from collections.abc import Callable

from cke.fidelity.checks.evidence import Document, Evidence, Problem, field
from cke.fidelity.checks.measurement import repeat_spread
from cke.fidelity.checks.publication import (
    approval_problems,
    approved_law,
    restricted_reference,
)
from cke.fidelity.fields import MISSING
from cke.fidelity.freeze import moment
from cke.fidelity.laws import law
from cke.fidelity.refusal import refuse

Case = Callable[[Evidence, Document, list[Problem]], list[str]]
BEFORE_BINDING = 8
"""The laws version that began to bind weights."""


def denied(number: int, evidence: Evidence, problems: list[Problem]) -> list[str]:
    """Return why an approval does not turn this law's failure into an override."""
    entry = approval(evidence.approvals, number)
    if entry is None:
        return ["no approval is recorded"]
    if law(number).override == "never":
        return ["this law permits no override"]
    if found := approval_problems(entry):
        return [f"the approval {text}" for text in found]
    return CASES[number](evidence, entry, problems)


def approved(approvals: Document, number: int, entry: Document) -> Document:
    """Return approvals with one more; CKE876 for a law without override, or an incomplete entry.

    An approval that is recorded is never replaced: its time is part of it.
    """
    problems = [f"the approval {text}" for text in approval_problems(entry)]
    if approved_law(number) is None:
        problems.append(f"there is no law {number}")
    elif law(number).override == "never":
        problems.append(f"law {number} permits no override")
    if approval(approvals, number) is not None:
        problems.append(f"an approval of law {number} is recorded")
    if problems:
        refuse("CKE876", problems)
    return {**approvals, str(number): {**entry, "case": law(number).cases}}


def approval(approvals: Document, number: int) -> Document | None:
    """Return the approval recorded for a law, under either spelling of its key."""
    for key in (str(number), f"law_{number}"):
        if key in approvals:
            entry = approvals[key]
            return entry if isinstance(entry, dict) else {}
    return None


def _others(problems: list[Problem], lines: tuple[str, ...]) -> list[str]:
    return [f"{item.text} is no case of it" for item in problems if item.line not in lines]


def _baseline(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """A non-zero baseline: approved before any scoring, with a repeat study."""
    found = _others(problems, ("1.2", "1.10"))
    approved = moment(entry["timestamp"])
    times = [moment(field(r, "scored_at")) for r in (evidence.report, *evidence.family)]
    if approved is None or not all(time is not None and approved < time for time in times):
        found.append("the approval was not recorded before every candidate was scored")
    _, missing = repeat_spread(evidence.repeat_study)
    return found + [item.text for item in missing]


def _same_head(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """The second pass was left out, and the heads are bit-identical."""
    heads = [field(evidence.report, f"{n}_lm_head.weights_sha256") for n in ("student", "teacher")]
    if MISSING in heads or heads[0] != heads[1]:
        return ["the heads are not proven bit-identical"]
    return _others(problems, ("8.1", "8.2"))


def _exploratory(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """Exploratory work, which is never published as qualification."""
    if field(evidence.report, "exploratory") is not True:
        return ["the result is not labelled exploratory"]
    return _others(problems, ("11.2", "11.3", "11.4"))


def _licence(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """The reference's licence restricts redistribution."""
    return [item.text for item in restricted_reference(evidence)] + _others(problems, ("12.1",))


def _unstratified(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """A suite that its manifest does not describe, or a run that is not a candidate's result."""
    declared = field(evidence.suite.manifest if evidence.suite else None, "strata")
    bounded = field(evidence.report, "bounded_prefix") is True and evidence.role != "candidate"
    if declared is not MISSING and not bounded and evidence.role != "baseline":
        return ["a published candidate on a stratified suite discloses its domains"]
    return []


def _before_binding(evidence: Evidence, entry: Document, problems: list[Problem]) -> list[str]:
    """A result of an older version whose weights are gone."""
    version = field(evidence.report, "laws_version")
    if not isinstance(version, int) or version >= BEFORE_BINDING:
        return ["only a result scored before weights were bound may be unbound"]
    return _others(problems, ("16.1", "16.2"))


CASES: dict[int, Case] = {
    1: _baseline,
    8: _same_head,
    11: _exploratory,
    12: _licence,
    15: _unstratified,
    16: _before_binding,
}
