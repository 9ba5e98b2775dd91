"""Compare two records of which one keeps no values: by digest, else by what summaries can prove.

Equal digests are equal bytes. Else a summary can prove that a row is over its gate, since the norm
of a difference is at least the difference of the norms, and the largest error at least the
difference of the extremes; it can never prove that a row is within.
"""

import math

from cke.runtime.records import digest, summarise
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.numerical_report import Gate, Metrics, RowStatus
from cke.schemas.trace import Record, Summary
from cke.xray.validity import valid_elements

FIELDS = ("min", "max", "mean", "l2", "nan", "inf")


def same_bytes(mine: Record, theirs: Record) -> bool:
    """Return whether the digests say that both records have the same bytes in the same order."""
    facts = [(r.sha256, r.dtype, r.axes, r.shape) for r in (mine, theirs)]
    return mine.sha256 is not None and facts[0] == facts[1]


def exact_metrics(theirs: Record) -> Metrics:
    """Return the metrics of a record against its own bytes."""
    size = math.prod(theirs.shape)
    bad = theirs.summary.nan + theirs.summary.inf
    norm, some = theirs.summary.l2 or 0.0, size > bad
    undefined = {} if some else {"rmse": "no pair of finite elements"}
    if norm == 0:
        undefined |= {
            "cosine": "a side has zero norm",
            "relative_rmse": "the oracle has zero norm",
        }
    return Metrics(
        total_elements=size,
        exact_elements=size,
        exact_ratio=1.0,
        byte_exact=True,
        finite=bad == 0,
        subject_nonfinite=bad,
        oracle_nonfinite=bad,
        mismatched_nonfinite=0,
        cosine=1.0 if norm else None,
        rmse=0.0 if some else None,
        relative_rmse=0.0 if norm else None,
        mean_abs=0.0 if some else None,
        max_abs=0.0 if some else None,
        oracle_max_abs=_largest(theirs.summary) if some else None,
        max_ulp=None if theirs.dtype in ("i32", "bool", "fp64") else 0,
        worst=None,
        undefined=undefined,
    )


def comparable(
    mine: Record, theirs: Record, subject: TraceFolder, oracle: TraceFolder
) -> tuple[Summary, Summary]:
    """Return both summaries over the elements that both sides computed."""
    return _over_valid(mine, subject), _over_valid(theirs, oracle)


def _over_valid(record: Record, side: TraceFolder) -> Summary:
    """Return the record's summary; where padding could count in it, that of its values."""
    mask = valid_elements(record, side.trace.body.segments[record.segment])
    if mask is None or record.tensor_path is None:
        return record.summary
    return summarise(side.array(record, digest), mask)


def oracle_scale(
    record: Record, summary: Summary, oracle: TraceFolder
) -> tuple[float | None, float | None]:
    """Return the root mean square and the largest magnitude of the oracle's values."""
    if not summary.l2:
        return None, None
    size = math.prod(record.shape)
    mask = valid_elements(record, oracle.trace.body.segments[record.segment])
    counted = size if mask is None else int(mask.sum()) * size // mask.size
    return summary.l2 / math.sqrt(counted - summary.nan - summary.inf), _largest(summary)


def status_of_summaries(mine: Summary, theirs: Summary, gate: Gate) -> RowStatus:
    """Return `summary_over` when no values with these summaries are within the gate."""
    if (mine.nan, mine.inf) != (theirs.nan, theirs.inf):
        return "summary_over"
    if mine.l2 is None or theirs.l2 is None:
        return "summary" if mine == theirs else "summary_over"
    slack = 1 + 1e-6  # a norm is itself rounded
    over = abs(mine.l2 - theirs.l2) > gate.relative_rmse * theirs.l2 * slack
    if gate.max_abs is not None:
        ends = ((mine.min, theirs.min), (mine.max, theirs.max))
        apart = max(abs((left or 0.0) - (right or 0.0)) for left, right in ends)
        over = over or apart > gate.max_abs * slack
    return "summary_over" if over else "summary"


def side_by_side(mine: Summary, theirs: Summary) -> str:
    """Return both summaries in one line."""
    pairs = ((name, getattr(mine, name), getattr(theirs, name)) for name in FIELDS)
    return ", ".join(f"{name} {_shown(left)} and {_shown(right)}" for name, left, right in pairs)


def _largest(summary: Summary) -> float:
    return max(abs(summary.min or 0.0), abs(summary.max or 0.0))


def _shown(value: float | int | None) -> str:
    return "none" if value is None else f"{value:.7g}"
