"""Metrics of one checkpoint: subject against oracle, over the rows that both computed (XRAY-11).

Arrays are compared in float64, in blocks, so that memory stays bounded by the block. What cannot
be a number is stated: a zero-norm side has no cosine, a non-finite pair has no error.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.schemas.numerical_report import Metrics, Worst
from cke.schemas.reading import stated
from cke.xray.tiles import flat_start, tile_shape, tiles

Array = NDArray[np.generic]
TILE = 1 << 18


class Block(msgspec.Struct, frozen=True):
    """A run of elements of both sides: `start` is its flat index, `valid` leaves some out."""

    start: int
    subject: Array
    oracle: Array
    valid: NDArray[np.bool_] | None = None


class _Sums:
    """Running sums over blocks."""

    def __init__(self) -> None:
        self.total = self.exact = self.pairs = 0
        self.subject_bad = self.oracle_bad = self.mismatched = 0
        self.dot = self.subject_square = self.oracle_square = 0.0
        self.error_square = self.error_sum = 0.0
        self.max_abs = -1.0
        self.oracle_max = 0.0
        self.max_ulp: int | None = 0
        self.byte_exact = True
        self.worst_index = -1
        self.worst = (0.0, 0.0)

    def add(self, block: Block) -> None:
        """Count one block in; equal bytes need no difference."""
        index = None if block.valid is None else np.flatnonzero(block.valid)
        subject, oracle = block.subject, block.oracle
        if index is not None:
            subject, oracle = subject[index], oracle[index]
        equal = _equal_bits(subject, oracle)
        self.byte_exact = self.byte_exact and equal
        if equal and self._same(block.start, subject, index):
            return
        left, right = subject.astype(np.float64), oracle.astype(np.float64)
        good_left, good_right = np.isfinite(left), np.isfinite(right)
        both = good_left & good_right
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        self.total += left.size
        self.exact += int(same.sum())
        self.subject_bad += int((~good_left).sum())
        self.oracle_bad += int((~good_right).sum())
        bad = ~both & ~same
        self.mismatched += int(bad.sum())
        self._errors(block.start, index, left, right, both, bad)
        self.pairs += int(both.sum())
        self.max_ulp = _max_ulp(self.max_ulp, subject, oracle, both)

    def _same(self, start: int, values: Array, index: NDArray[np.int64] | None) -> bool:
        """Count a block of equal bytes in; False when it is not finite."""
        if values.size == 0:
            return True
        wide = values.astype(np.float64)
        square = float(np.dot(wide, wide))
        if not np.isfinite(square):
            return False
        self.total += wide.size
        self.exact += wide.size
        self.pairs += wide.size
        self.dot += square
        self.subject_square += square
        self.oracle_square += square
        self.oracle_max = max(self.oracle_max, float(wide.max()), -float(wide.min()))
        if values.dtype.kind in "iub" or values.dtype.itemsize == 8:
            self.max_ulp = None
        if self.max_abs < 0:
            self._place(start, index, 0, 0.0, float(wide[0]), float(wide[0]))
        return True

    def _errors(
        self,
        start: int,
        index: NDArray[np.int64] | None,
        raw_left: NDArray[np.float64],
        raw_right: NDArray[np.float64],
        both: NDArray[np.bool_],
        bad: NDArray[np.bool_],
    ) -> None:
        left, right = np.where(both, raw_left, 0.0), np.where(both, raw_right, 0.0)
        error = np.abs(left - right)
        self.dot += float(np.dot(left, right))
        self.subject_square += float(np.dot(left, left))
        self.oracle_square += float(np.dot(right, right))
        self.error_square += float(np.dot(error, error))
        self.error_sum += float(error.sum())
        self.oracle_max = max(self.oracle_max, float(np.abs(right).max(initial=0.0)))
        if error.size == 0:
            return
        ranked = np.where(bad, np.inf, error)
        at = int(np.argmax(ranked))
        if ranked[at] > self.max_abs:
            self._place(
                start, index, at, float(ranked[at]), float(raw_left[at]), float(raw_right[at])
            )

    def _place(
        self,
        start: int,
        index: NDArray[np.int64] | None,
        at: int,
        error: float,
        subject: float,
        oracle: float,
    ) -> None:
        self.max_abs = error
        self.worst_index = start + (at if index is None else int(index[at]))
        self.worst = (subject, oracle)


def compare(
    subject: Array,
    oracle: Array,
    axes: tuple[str, ...],
    valid: NDArray[np.bool_] | None = None,
) -> Metrics:
    """Return the metrics of two arrays of equal shape; `valid` leaves padding rows out.

    Shapes and axes were checked before: a mismatch is an assertion, not a result.
    """
    assert subject.shape == oracle.shape, "metadata was not checked before numbers"
    return compare_blocks(_blocks(subject, oracle, valid), subject.shape, axes)


def compare_blocks(
    blocks: Iterable[Block], shape: tuple[int, ...], axes: tuple[str, ...]
) -> Metrics:
    """Return the metrics of two tensors of `shape` that come block by block, in order."""
    sums = _Sums()
    for block in blocks:
        sums.add(block)
    return _metrics(sums, shape, axes)


def _blocks(left: Array, right: Array, valid: NDArray[np.bool_] | None) -> Iterator[Block]:
    mask = None if valid is None or valid.all() else np.broadcast_to(valid, left.shape)
    for tile in tiles(left.shape, TILE):
        yield Block(
            flat_start(tile, left.shape),
            np.asarray(left[tile]).reshape(-1),
            np.asarray(right[tile]).reshape(-1),
            None if mask is None else mask[tile].reshape(-1),
        )


def mask_of(valid: NDArray[np.bool_] | None, tile: tuple[slice, ...]) -> NDArray[np.bool_] | None:
    """Return the flat part of a broadcastable mask over a tile; None when all of it counts."""
    if valid is None:
        return None
    own = tuple(
        slice(0, 1) if size == 1 else part for part, size in zip(tile, valid.shape, strict=True)
    )
    part = np.broadcast_to(valid[own], tile_shape(tile)).reshape(-1)
    return None if part.all() else part


def _equal_bits(left: Array, right: Array) -> bool:
    if left.dtype != right.dtype:
        return False
    unsigned = np.dtype(f"u{left.dtype.itemsize}")
    return bool(np.array_equal(left.view(unsigned), right.view(unsigned)))


def _metrics(sums: _Sums, shape: tuple[int, ...], axes: tuple[str, ...]) -> Metrics:
    undefined: dict[str, str] = {}
    pairs = sums.pairs
    norms = np.sqrt(sums.subject_square) * np.sqrt(sums.oracle_square)
    if pairs == 0:
        undefined["rmse"] = "no pair of finite elements"
    if norms == 0:
        undefined["cosine"] = "a side has zero norm"
    rmse = float(np.sqrt(sums.error_square / pairs)) if pairs else None
    rms = float(np.sqrt(sums.oracle_square / pairs)) if pairs else 0.0
    if rms == 0:
        undefined["relative_rmse"] = "the oracle has zero norm"
    if sums.mismatched:
        undefined["max_abs"] = "a non-finite element on one side only"
    finite = sums.subject_bad == 0 and sums.oracle_bad == 0
    return Metrics(
        total_elements=sums.total,
        exact_elements=sums.exact,
        exact_ratio=sums.exact / sums.total if sums.total else 1.0,
        byte_exact=sums.byte_exact,
        finite=finite,
        subject_nonfinite=sums.subject_bad,
        oracle_nonfinite=sums.oracle_bad,
        mismatched_nonfinite=sums.mismatched,
        cosine=float(min(1.0, max(-1.0, sums.dot / norms))) if norms else None,
        rmse=rmse,
        relative_rmse=rmse / rms if rmse is not None and rms else None,
        mean_abs=sums.error_sum / pairs if pairs else None,
        max_abs=None if sums.mismatched or sums.max_abs < 0 else sums.max_abs,
        oracle_max_abs=sums.oracle_max if pairs else None,
        max_ulp=sums.max_ulp,
        worst=_worst(sums, shape, axes),
        undefined=undefined,
    )


def _worst(sums: _Sums, shape: tuple[int, ...], axes: tuple[str, ...]) -> Worst | None:
    if sums.worst_index < 0:
        return None
    coordinate = np.unravel_index(sums.worst_index, shape)
    return Worst(
        coordinate={name: int(i) for name, i in zip(axes, coordinate, strict=True)},
        subject=stated(sums.worst[0]),
        oracle=stated(sums.worst[1]),
    )


def _max_ulp(
    before: int | None, subject: Array, oracle: Array, both: NDArray[np.bool_]
) -> int | None:
    if before is None or subject.dtype != oracle.dtype or subject.dtype.kind in "iub":
        return None
    width = subject.dtype.itemsize
    signed = np.dtype(f"i{width}")
    left = subject[both].view(signed).astype(np.int64)
    right = oracle[both].view(signed).astype(np.int64)
    if left.size == 0 or width == 8:
        return before if width != 8 else None
    floor = np.int64(-(2 ** (8 * width - 1)))
    left = np.where(left < 0, floor - left, left)
    right = np.where(right < 0, floor - right, right)
    return max(before, int(np.abs(left - right).max()))


def error_text(metrics: Metrics) -> str:
    """Return the relative RMSE in words."""
    value = metrics.relative_rmse
    if metrics.mismatched_nonfinite:
        return f"{metrics.mismatched_nonfinite} elements are not finite on one side"
    return "undefined" if value is None else f"{value:.3g}"
