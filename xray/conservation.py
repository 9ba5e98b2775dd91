"""Sums that hold on one side by itself: they find harness bugs that no oracle shows.

Residuals: what a layer adds to its stream is what its parts produced. Probabilities: each row of
the softmax sums to one. A check whose captures are missing is left out.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import split_id
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.numerical_report import Conservation
from cke.schemas.trace import Record
from cke.xray.budget import UNIT_ROUNDOFF
from cke.xray.metrics import mask_of
from cke.xray.streams import TILE, TensorStream, opened
from cke.xray.tiles import Tile, tiles
from cke.xray.validity import valid_elements

ATTENTION_SUMS = (
    "layer_scale_attention",
    "post_attention_norm_output",
    "attention.attention_output_projection",
)
MLP_SUMS = ("layer_scale_mlp", "post_mlp_norm_output", "mlp.mlp_down_projection")
"""What a residual adds, the last operation on it first."""
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
    if {(r.axes, r.shape) for r in (start, part)} != {(total.axes, total.shape)}:
        return
    mask = valid_elements(total, side.trace.body.segments[total.segment])
    largest = worst = 0.0
    with opened(side, total, start, part) as streams:
        for tile in tiles(total.shape, TILE):
            whole, came, added = (_flat(stream, tile) for stream in streams)
            error = np.abs(came + added - whole)
            kept = mask_of(mask, tile)
            error = error if kept is None else np.where(kept, error, 0.0)
            worst = max(worst, float(error.max(initial=0.0)))
            largest = max(largest, float(np.abs(whole).max(initial=0.0)))
    yield _result("residual", total, worst, 2 * UNIT_ROUNDOFF[total.dtype] * largest)


def _probabilities(side: TraceFolder, record: Record, segment: int) -> Conservation:
    """Sum each row over its keys; a row without a valid key has no sum."""
    mask = valid_elements(record, side.trace.body.segments[segment])
    at = record.axes.index("S")
    worst = 0.0
    with opened(side, record) as (stream,):
        for tile in tiles(record.shape, TILE, whole=at):
            values = stream.tile(tile).astype(np.float64)
            kept = mask_of(mask, tile)
            if kept is not None:
                valid = kept.reshape(values.shape)
                sums = np.where(valid, values, 0.0).sum(axis=at)[valid.any(at)]
            else:
                sums = values.sum(axis=at)
            worst = max(worst, float(np.abs(sums - 1).max(initial=0.0)))
    limit = UNIT_ROUNDOFF[record.dtype] * max(8, record.shape[at])
    return _result("probabilities sum to one", record, worst, limit)


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


def _flat(stream: TensorStream, tile: Tile) -> NDArray[np.float64]:
    return stream.tile(tile).astype(np.float64).reshape(-1)


def _name(record: Record) -> str:
    return split_id(record.checkpoint_id)[0]
