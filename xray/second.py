"""A second opinion: the report of another oracle on the same subject, cited by its digest."""

import math
from typing import Literal

import msgspec

from cke.schemas.diagnosis import Diagnosis, Divergence, Point
from cke.schemas.trace import Body
from cke.xray.diff import OVER
from cke.xray.finding import Finding
from cke.xray.locate import POSITIONS

AGREE = 0.01
"""Two oracles agree where their distances from the subject differ by no more than this part."""


def with_second(finding: Finding, second: Diagnosis, mine: tuple[Body, Body] | None) -> Finding:
    """Return the finding with what a second oracle says of the same edge.

    It breaks the tie between the subject's definition, or its own copy of a weight, and the first.
    A report of another subject, or of an oracle that is no second one, is left aside, and said to
    be.
    """
    weights = finding.row is not None and finding.row.stage == "weights"
    doubtful = finding.owner == "circuit" or finding.failure_class is None
    if not (weights or (doubtful and finding.replay is not None)):
        return finding
    stance, text = _stance(finding, second, mine)
    if stance == "sides":
        both = ", with weights of its own, sides" if weights else " and the float64 definition side"
        return msgspec.structs.replace(
            finding,
            failure_class="REFERENCE_DEFECT",
            owner="reference_adapter",
            because=(*finding.because, f"{_named(second)}{both} with the subject"),
            question=None,
        )
    if text is None:
        return finding
    told = (*finding.because, text)
    if stance == "as far" and finding.failure_class is None:
        return msgspec.structs.replace(
            finding,
            failure_class=(
                "POSITION_CONTRACT_MISMATCH"
                if finding.operator in POSITIONS
                else "CIRCUIT_SEMANTICS_DIVERGENCE"
            ),
            owner="circuit",
            because=(*told, "and by as much: two oracles agree on what the circuit does not say"),
            question=None,
        )
    return msgspec.structs.replace(finding, because=told)


def with_opinion(finding: Finding, second: Diagnosis, mine: tuple[Body, Body]) -> Finding:
    """Return the question of two traces with what a second oracle says of the same edge.

    No op was replayed, so no owner follows from it: the question becomes narrower.
    """
    if finding.failure_class is not None:
        return finding
    stance, text = _stance(finding, second, mine)
    first = mine[1].producer.name
    narrower = {
        "sides": f"whether {first} is wrong there: with the model that was traced the op's float64 "
        "definition is asked too",
        "as far": "what op of the subject makes the difference, as two oracles agree: with the "
        "model that was traced every op is replayed",
    }
    return msgspec.structs.replace(
        finding,
        because=(*finding.because, text or f"{_named(second)} shows nothing of this edge"),
        question=narrower.get(stance, finding.question),
    )


Stance = Literal["unfit", "sides", "earlier", "silent", "differs", "as far"]


def _stance(
    finding: Finding, second: Diagnosis, mine: tuple[Body, Body] | None
) -> tuple[Stance, str | None]:
    """Return where a second report stands on the edge of a finding, and how that is said."""
    unfit = _unfit(second, mine)
    if unfit is not None:
        return "unfit", f"the second report was left aside: {unfit}"
    same = [point for point in second.points if point.checkpoint_id == finding.checkpoint_id]
    if same and all(point.status not in OVER for point in same):
        return "sides", f"{_named(second)} sides with the subject"
    earlier = second.first_divergence
    if earlier is not None and not _there(finding, earlier):
        return "earlier", f"{_named(second)} diverges at {earlier.checkpoint_id} first"
    if not same:
        return "silent", None
    as_far = any(_as_far(finding, point) for point in same)
    return "as far" if as_far else "differs", f"{_named(second)} differs from the subject too"


def _named(second: Diagnosis) -> str:
    return f"the second oracle ({second.oracle.get('producer')})"


def _unfit(second: Diagnosis, mine: tuple[Body, Body] | None) -> str | None:
    """Return why a report is no second opinion on this subject, None when it is one."""
    if mine is None:
        return None
    subject, oracle = mine
    if second.oracle.get("producer") == oracle.producer.name:
        return f"it is of the same oracle, {oracle.producer.name}"
    if second.oracle.get("producer") == "reference":
        return "the reference reads the subject's own circuit and weights"
    known = {
        "circuit": subject.identity.circuit,
        "dtype": subject.producer.dtype,
        "tokens_sha256": subject.identity.tokens_sha256,
    }
    for key, value in known.items():
        if second.subject.get(key) != value:
            return f"its subject has another `{key}`"
    return None


def _there(finding: Finding, other: Divergence) -> bool:
    """Return whether another report's first divergence is not before this one."""
    return (other.checkpoint_id, other.role) == (finding.checkpoint_id, finding.role)


def _as_far(finding: Finding, point: Point) -> bool:
    """Return whether a point of another report is as far from the subject as the finding is."""
    mine = None if finding.metrics is None else finding.metrics.relative_rmse
    if mine is None or point.relative_rmse is None:
        return False
    place = (finding.segment, finding.role)
    return place == (point.segment, point.role) and math.isclose(
        mine, point.relative_rmse, rel_tol=AGREE
    )
