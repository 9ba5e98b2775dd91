"""The compliance receipt: one finding per law, and whether the result may be published.

Goal: fail closed. A law without a clean outcome is a failure; an approval helps only where the
table of laws permits it and its stated case holds.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from cke.fidelity.checks import CHECKS
from cke.fidelity.checks.evidence import Document, Evidence, NotApplicable, Problem, field
from cke.fidelity.checks.measurement import repeat_spread
from cke.fidelity.checks.publication import approved_law, rendered
from cke.fidelity.checks.stack import page_claims
from cke.fidelity.checks.weights import is_baseline
from cke.fidelity.fields import MISSING, key_of
from cke.fidelity.laws import LAWS_VERSION, law, laws, table_problems
from cke.fidelity.overrides import approval, denied

Status = Literal["pass", "fail", "override", "not_applicable"]
Clock = Callable[[], str]
PAGE_LAWS = (4, 9, 10, 13)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One law's outcome; `lines` are the lines of the contract that do not hold."""

    law: int
    title: str
    status: Status
    detail: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    approval: Document | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was judged, under which version, and the outcome of every law."""

    program: str
    laws_version: Any
    evaluated_at: str
    candidate: Any
    partition: Any
    mean_kld: Any
    zero_baseline_kld: Any
    nondeterminism_floor: float | None
    ranking_floor: float | None
    routing: Any
    comparability_key: dict[str, Any]
    findings: tuple[Finding, ...]
    compliant: bool
    failed_laws: tuple[int, ...]
    overridden_laws: tuple[int, ...]
    unused_approvals: tuple[str, ...]


def judge(evidence: Evidence, clock: Clock) -> Receipt:
    """Return the receipt; a page that was not rendered yet is a failure of the laws it serves."""
    bound = bind_key(evidence)
    findings = [program_finding(bound), *(_finding(number, bound) for number in CHECKS)]
    findings = _with_page(bound, findings)
    failed = tuple(item.law for item in findings if item.status == "fail")
    overridden = tuple(item.law for item in findings if item.status == "override")
    spread, _ = repeat_spread(bound.repeat_study)
    return Receipt(
        program="distribution fidelity",
        laws_version=bound.report.get("laws_version"),
        evaluated_at=clock(),
        candidate=bound.report.get("student_model"),
        partition=bound.report.get("partition"),
        mean_kld=bound.report.get("mean_kld"),
        zero_baseline_kld=(bound.self_report or {}).get("mean_kld"),
        nondeterminism_floor=spread if 1 in overridden else 0.0,
        ranking_floor=_routing_floor(bound),
        routing=_or_none(field(bound.routing, "natural_divergence")),
        comparability_key=key_of(bound.report),
        findings=tuple(findings),
        compliant=not failed,
        failed_laws=failed,
        overridden_laws=overridden,
        unused_approvals=_unused(bound, overridden),
    )


def bind_key(evidence: Evidence) -> Evidence:
    """Return the evidence with the report's own key beside it, unless the report has one."""
    if "comparability_key" in evidence.report:
        return evidence
    report = {**evidence.report, "comparability_key": key_of(evidence.report)}
    return msgspec.structs.replace(evidence, report=report)


def program_finding(evidence: Evidence) -> Finding:
    """Return the finding on the version and the table themselves, as law 0."""
    version = evidence.report.get("laws_version")
    problems = [Problem("0.3", text) for text in table_problems(laws())]
    if version != LAWS_VERSION or isinstance(version, bool):
        problems.append(Problem("0.2", f"produced under laws {version}: must be rescored"))
    return _made(0, problems, "fail" if problems else "pass")


def _finding(number: int, evidence: Evidence) -> Finding:
    outcome = CHECKS[number](evidence)
    if isinstance(outcome, NotApplicable):
        return Finding(
            law=number, title=law(number).title, status="not_applicable", detail=(outcome.reason,)
        )
    return _judged(number, evidence, outcome)


def _judged(number: int, evidence: Evidence, problems: list[Problem]) -> Finding:
    if not problems:
        return _made(number, [], "pass")
    if approval(evidence.approvals, number) is None:
        return _made(number, problems, "fail")
    refusals = denied(number, evidence, problems)
    if refusals:
        why = [Problem("13.4", f"the approval does not help: {text}") for text in refusals]
        return _made(number, [*problems, *why], "fail")
    entry = approval(evidence.approvals, number)
    return msgspec.structs.replace(_made(number, problems, "override"), approval=entry)


def _made(number: int, problems: list[Problem], status: Status) -> Finding:
    return Finding(
        law=number,
        title=law(number).title,
        status=status,
        detail=tuple(item.text for item in problems),
        lines=tuple(dict.fromkeys(item.line for item in problems)),
    )


def deviations(findings: list[Finding]) -> dict[int, Document]:
    """Return the approvals that stand, by law."""
    return {f.law: f.approval for f in findings if f.status == "override" and f.approval}


def _with_page(evidence: Evidence, findings: list[Finding]) -> list[Finding]:
    """The findings with what the page owes; only a law that holds so far can fail by it."""
    problems = page_problems(evidence, findings)
    made = []
    for item in findings:
        mine = [p for p in problems if int(p.line.partition(".")[0]) == item.law]
        if mine:
            lines = (*item.lines, *(p.line for p in mine))
            detail = (*item.detail, *(p.text for p in mine))
            item = msgspec.structs.replace(item, status="fail", lines=lines, detail=detail)
        made.append(item)
    return made


def page_problems(evidence: Evidence, findings: list[Finding]) -> list[Problem]:
    """Return what the one-pager does not show, or should not say."""
    page = evidence.page
    if page is None:
        return [Problem("9.2", "there is no one-pager")]
    from cke.fidelity.page import owed

    problems = [
        Problem(line, f"the one-pager does not show {what}")
        for line, what, text in owed(evidence)
        if text not in page
    ]
    problems += rendered(page, deviations(findings), evidence.report.get("mean_kld"))
    return problems + page_claims(page) + _headline(evidence, findings, page)


def _headline(evidence: Evidence, findings: list[Finding], page: str) -> list[Problem]:
    """Under an override of Law 1, baseline and spread stand in the opening section."""
    if 1 not in deviations(findings):
        return []
    opening = page.partition("\n## ")[0]
    spread, _ = repeat_spread(evidence.repeat_study)
    values = ((evidence.self_report or {}).get("mean_kld"), spread)
    return [
        Problem("1.7", f"the opening section does not show {value!r}")
        for value in values
        if repr(value) not in opening
    ]


def _unused(evidence: Evidence, overridden: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(str(key) for key in evidence.approvals if approved_law(key) not in overridden)


def _routing_floor(evidence: Evidence) -> float | None:
    found = _or_none(field(evidence.routing, "natural_divergence.routing_excess_mean"))
    return float(found) if isinstance(found, int | float) else None


def _or_none(value: Any) -> Any:
    return None if value is MISSING else value


def must_be_unranked(evidence: Evidence) -> bool:
    """Whether a result is published without a rank: the baseline, or saturated routing."""
    state = field(evidence.routing, "natural_divergence.state")
    return is_baseline(evidence.report) or state == "saturated"
