"""Sums that hold on one side by itself: they find harness bugs that no oracle shows.

Residuals: what a layer adds to its stream is what its parts produced. Probabilities: each row of
the softmax sums to one. A check whose captures are missing is left out.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import digest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.numerical_report import Conservation
from cke.schemas.trace import Record
from cke.xray.budget import UNIT_ROUNDOFF
from cke.xray.validity import valid_elements

ATTENTION_SUMS = ("post_attention_norm_output", "attention.attention_output_projection")
MLP_SUMS = ("post_mlp_norm_output", "mlp.mlp_down_projection")
Records = dict[tuple[int, int | None, str], Record]


def check_conservation(side: TraceFolder) -> Iterable[Conservation]:
    """Yield every check whose captures the trace holds."""
    records: Records = {
        (r.segment, r.layer, _name(r)): r
        for r in side.trace.body.records
        if r.tensor_path is not None and r.role is None
    }
    for (segment, _, name), record in records.items():
        if name == "post_attention_residual":
            yield from _residual(side, records, record, "layer_input", ATTENTION_SUMS)
        elif name == "layer_output":
            yield from _residual(side, records, record, "post_attention_residual", MLP_SUMS)
        elif name == "attention.attention_probabilities":
            yield _probabilities(side, record, segment)


def _residual(
    side: TraceFolder, records: Records, total: Record, before: str, parts: tuple[str, ...]
) -> Iterable[Conservation]:
    start = records.get((total.segment, total.layer, before))
    part = next(
        (
            records[total.segment, total.layer, name]
            for name in parts
            if (total.segment, total.layer, name) in records
        ),
        None,
    )
    if start is None or part is None:
        return
    whole = _values(side, total)
    error = np.abs(_values(side, start) + _values(side, part) - whole)
    mask = valid_elements(total, side.trace.body.segments[total.segment])
    if mask is not None:
        error = np.where(mask, error, 0.0)
    limit = 2 * UNIT_ROUNDOFF[total.dtype] * float(np.abs(whole).max(initial=0.0))
    yield _result("residual", total, float(error.max(initial=0.0)), limit)


def _probabilities(side: TraceFolder, record: Record, segment: int) -> Conservation:
    values = _values(side, record)
    mask = valid_elements(record, side.trace.body.segments[segment])
    if mask is not None:
        values = np.where(mask, values, 0.0)
    at = record.axes.index("S")
    sums = values.sum(axis=at)
    rows = np.ones_like(sums, bool) if mask is None else np.broadcast_to(mask.any(at), sums.shape)
    error = float(np.abs(sums - 1)[rows].max(initial=0.0))
    limit = UNIT_ROUNDOFF[record.dtype] * max(8, record.shape[at])
    return _result("probabilities sum to one", record, error, limit)


def _result(check: str, record: Record, error: float, limit: float) -> Conservation:
    return Conservation(
        side="",
        check=check,
        checkpoint_id=record.checkpoint_id,
        segment=record.segment,
        error=error,
        limit=limit,
        holds=error <= limit,
    )


def _values(side: TraceFolder, record: Record) -> NDArray[np.float64]:
    return np.asarray(side.array(record, digest), np.float64)


def _name(record: Record) -> str:
    prefix = f"layer.{record.layer}."
    return record.checkpoint_id.removeprefix(prefix)
