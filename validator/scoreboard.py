"""The scoreboard: counts over outcomes, by class, owner, family and more, and a computed status."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from cke.schemas.validator_selftest import Outcome, Score, Selftest, Status

EDGE_EXACT = 0.97
CLASS_AND_OWNER = 0.95
THRESHOLDS = {
    "edge_exact_at_least": EDGE_EXACT,
    "class_right_at_least": CLASS_AND_OWNER,
    "owner_right_at_least": CLASS_AND_OWNER,
    "wrong_at_most": 0.0,
    "false_positives_at_most": 0.0,
    "failed_at_most": 0.0,
}
GROUPS: dict[str, Callable[[Outcome], str]] = {
    "class": lambda item: item.expected.failure_class or item.kind,
    "owner": lambda item: item.expected.fix_owner or item.kind,
    "family": lambda item: item.family,
    "oracle": lambda item: item.oracle,
    "dtype": lambda item: item.dtype,
    "request": lambda item: item.request,
    "place": lambda item: item.place,
    "size": lambda item: item.size or "one size",
}


def selftest(
    outcomes: Iterable[Outcome], chosen: tuple[str, ...], mode: str, seed: int, catalogue: str
) -> Selftest:
    """Return the scoreboard of a run; a chosen case without an outcome leaves it incomplete."""
    ordered = tuple(sorted(outcomes, key=lambda item: chosen.index(item.id)))
    score = count(ordered)
    reasons = tuple(_reasons(score, len(chosen) - len(ordered)))
    return Selftest(
        status=_status(score, reasons, len(ordered) == len(chosen)),
        reasons=reasons,
        thresholds=THRESHOLDS,
        mode=mode,
        seed=seed,
        chosen=chosen,
        catalogue_sha256=catalogue,
        score=score,
        by={name: _grouped(ordered, key) for name, key in GROUPS.items()},
        outcomes=ordered,
    )


def count(outcomes: Iterable[Outcome]) -> Score:
    """Return the counts over a set of outcomes."""
    items = list(outcomes)
    faults = [item for item in items if item.kind == "fault"]
    return Score(
        injected=len(faults),
        edge_exact=sum(item.edge_exact for item in faults),
        class_right=sum(item.class_right for item in faults),
        owner_right=sum(item.owner_right for item in faults),
        confirmed=sum(item.confirmed for item in faults),
        declined=sum(item.declined for item in faults),
        missed=sum(item.missed for item in faults),
        wrong=sum(item.wrong for item in faults),
        controls=len(items) - len(faults),
        false_positives=sum(item.false_positive for item in items),
        failed=sum(item.failed is not None for item in items),
    )


def is_right(item: Outcome) -> bool:
    """Return whether an outcome is all that was asked: exact for a fault, silence for a control."""
    if item.failed is not None:
        return False
    if item.kind != "fault":
        return not item.false_positive
    return item.edge_exact and item.class_right and item.owner_right


def _grouped(outcomes: tuple[Outcome, ...], key: Callable[[Outcome], str]) -> dict[str, Score]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for item in outcomes:
        groups[key(item)].append(item)
    return {name: count(groups[name]) for name in sorted(groups)}


def _status(score: Score, reasons: tuple[str, ...], whole: bool) -> Status:
    if not whole or not score.injected or not score.controls:
        return "incomplete"
    return "fail" if reasons else "pass"


def _reasons(score: Score, missing: int) -> Iterable[str]:
    """Yield every threshold that does not hold, with its numbers."""
    if missing:
        yield f"{missing} chosen cases have no outcome yet"
    if not score.injected or not score.controls:
        yield f"expected faults and controls, got {score.injected} and {score.controls}"
    for name, right, least in (
        ("the first edge exact", score.edge_exact, EDGE_EXACT),
        ("the class right", score.class_right, CLASS_AND_OWNER),
        ("the owner right", score.owner_right, CLASS_AND_OWNER),
    ):
        if score.injected and right < least * score.injected:
            yield f"{right} of {score.injected} faults have {name}, expected {least:.0%} or more"
    for name, found in (
        ("diagnoses are wrong with confidence", score.wrong),
        ("controls were flagged", score.false_positives),
        ("cases gave no report", score.failed),
    ):
        if found:
            yield f"{found} {name}, expected none"
