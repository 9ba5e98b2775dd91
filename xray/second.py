"""A second opinion: the report of another oracle on the same subject, cited by its digest."""

import math

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
    A report of another subject, or of the same oracle, is left aside, and said to be.
    """
    weights = finding.row is not None and finding.row.stage == "weights"
    doubtful = finding.owner == "circuit" or finding.failure_class is None
    circuit = doubtful and finding.replay is not None
    same = [point for point in second.points if point.checkpoint_id == finding.checkpoint_id]
    if not (weights or circuit):
        return finding
    unfit = _unfit(second, mine)
    if unfit is not None:
        text = f"the second report was left aside: {unfit}"
        return msgspec.structs.replace(finding, because=(*finding.because, text))
    name = second.oracle.get("producer")
    if same and all(point.status not in OVER for point in same):
        both = ", with weights of its own, sides" if weights else " and the float64 definition side"
        return msgspec.structs.replace(
            finding,
            failure_class="REFERENCE_DEFECT",
            owner="reference_adapter",
            because=(
                *finding.because,
                f"the second oracle ({name}){both} with the subject",
            ),
            question=None,
        )
    earlier = second.first_divergence
    if earlier is not None and not _there(finding, earlier):
        text = f"the second oracle ({name}) diverges at {earlier.checkpoint_id} first"
        return msgspec.structs.replace(finding, because=(*finding.because, text))
    if not same:
        return finding
    told = (*finding.because, f"the second oracle ({name}) differs from the subject too")
    if finding.failure_class is None and any(_as_far(finding, point) for point in same):
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


def _unfit(second: Diagnosis, mine: tuple[Body, Body] | None) -> str | None:
    """Return why a report is no second opinion on this subject, None when it is one."""
    if mine is None:
        return None
    subject, oracle = mine
    if second.oracle.get("producer") == oracle.producer.name:
        return f"it is of the same oracle, {oracle.producer.name}"
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
