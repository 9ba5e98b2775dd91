"""Compare a report with what its fault must give, as the catalogue said beforehand."""

from typing import Any

from cke.schemas.diagnosis import Diagnosis
from cke.schemas.validator_selftest import Expected, Found, Outcome
from cke.validator.entries import Case


def judge(case: Case, report: Diagnosis | None, failed: str | None = None) -> Outcome:
    """Return the outcome of a case; without a report, `failed` says why there is none."""
    found = None if report is None else found_in(report)
    verdicts = _verdicts(case.kind == "fault", case.expected, found)
    return Outcome(
        id=case.id,
        entry=case.entry.id,
        kind=case.kind,
        stands_for=case.entry.stands_for,
        place=case.entry.place,
        size=case.size,
        family=case.family,
        request=case.request,
        dtype=case.dtype,
        oracle=case.oracle,
        expected=case.expected,
        found=found,
        failed=failed,
        **verdicts,
    )


def found_in(report: Diagnosis) -> Found:
    """Return what a report says, in short."""
    first = report.first_divergence
    change = None if first is None else first.confirmed_by
    return Found(
        status=report.status,
        verdict=report.verdict,
        checkpoint_id=None if first is None else first.checkpoint_id,
        failure_class=None if first is None else first.failure_class,
        fix_owner=None if first is None else first.fix_owner,
        confirmed_by=None if change is None else f"{change.kind} {change.what}",
        because=() if first is None else first.because,
        next_probe=None if report.next_probe is None else report.next_probe.question,
    )


def _verdicts(fault: bool, expected: Expected, found: Found | None) -> dict[str, Any]:
    """Return every verdict about an outcome; nothing is right without a report.

    A finding whose owner is open states nothing, unless open is what it has to be.
    """
    clean = found is not None and found.status == "complete" and found.verdict == "pass_within_gate"
    stated = (
        found is not None
        and found.failure_class is not None
        and (found.fix_owner is not None or expected.fix_owner is None)
    )
    class_right = stated and found is not None and found.failure_class == expected.failure_class
    owner_right = stated and found is not None and found.fix_owner == expected.fix_owner
    return {
        "edge_exact": fault
        and found is not None
        and not clean
        and found.checkpoint_id == expected.checkpoint_id,
        "class_right": fault and class_right,
        "owner_right": fault and owner_right,
        "confirmed": fault and found is not None and found.confirmed_by is not None,
        "declined": fault and found is not None and not stated and not clean,
        "missed": fault and clean,
        "wrong": fault and stated and not (class_right and owner_right),
        "false_positive": not fault and found is not None and not clean,
    }
