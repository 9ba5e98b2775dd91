"""Metrics of one checkpoint: subject against oracle, over the rows that both computed (XRAY-11).

Arrays are compared in float64, in blocks, so that memory stays bounded by the block. What cannot
be a number is stated: a zero-norm side has no cosine, a non-finite pair has no error.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cke.schemas.numerical_report import Metrics, Worst
from cke.schemas.reading import stated

BLOCK = 1 << 20
Array = NDArray[np.generic]


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
        self.worst_index = -1

    def add(self, start: int, subject: Array, oracle: Array) -> None:
        left = subject.astype(np.float64)
        right = oracle.astype(np.float64)
        good_left, good_right = np.isfinite(left), np.isfinite(right)
        both = good_left & good_right
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        self.total += left.size
        self.exact += int(same.sum())
        self.subject_bad += int((~good_left).sum())
        self.oracle_bad += int((~good_right).sum())
        self.mismatched += int((~both & ~same).sum())
        self._errors(start, np.where(both, left, 0.0), np.where(both, right, 0.0), ~both & ~same)
        self.pairs += int(both.sum())
        self.max_ulp = _max_ulp(self.max_ulp, subject, oracle, both)

    def _errors(
        self,
        start: int,
        left: NDArray[np.float64],
        right: NDArray[np.float64],
        bad: NDArray[np.bool_],
    ) -> None:
        error = np.abs(left - right)
        self.dot += float(np.dot(left, right))
        self.subject_square += float(np.dot(left, left))
        self.oracle_square += float(np.dot(right, right))
        self.error_square += float(np.dot(error, error))
        self.error_sum += float(error.sum())
        self.oracle_max = max(self.oracle_max, float(np.abs(right).max(initial=0.0)))
        ranked = np.where(bad, np.inf, error)
        index = int(np.argmax(ranked))
        if ranked[index] > self.max_abs:
            self.max_abs = float(ranked[index])
            self.worst_index = start + index


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
    sums = _Sums()
    index: NDArray[np.int64] | None = None
    if valid is not None and not valid.all():
        index = np.flatnonzero(np.broadcast_to(valid, subject.shape))
    flat = (subject.reshape(-1), oracle.reshape(-1))
    if index is not None:
        flat = (flat[0][index], flat[1][index])
    for start, left, right in _blocks(*flat):
        sums.add(start, left, right)
    position = sums.worst_index
    if index is not None and position >= 0:
        position = int(index[position])
    byte_exact = sums.exact == sums.total and _equal_bits(*flat)
    return _metrics(sums, subject, oracle, axes, position, byte_exact)


def _blocks(left: Array, right: Array) -> Iterator[tuple[int, Array, Array]]:
    for start in range(0, left.size, BLOCK):
        yield start, left[start : start + BLOCK], right[start : start + BLOCK]


def _equal_bits(left: Array, right: Array) -> bool:
    if left.dtype != right.dtype:
        return False
    unsigned = np.dtype(f"u{left.dtype.itemsize}")
    return all(
        bool(np.array_equal(a.view(unsigned), b.view(unsigned)))
        for _, a, b in _blocks(np.ascontiguousarray(left), np.ascontiguousarray(right))
    )


def _metrics(
    sums: _Sums,
    subject: Array,
    oracle: Array,
    axes: tuple[str, ...],
    position: int,
    byte_exact: bool,
) -> Metrics:
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
        byte_exact=byte_exact,
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
        worst=_worst(subject, oracle, axes, position),
        undefined=undefined,
    )


def _worst(subject: Array, oracle: Array, axes: tuple[str, ...], position: int) -> Worst | None:
    if position < 0:
        return None
    coordinate = np.unravel_index(position, subject.shape)
    return Worst(
        coordinate={name: int(i) for name, i in zip(axes, coordinate, strict=True)},
        subject=stated(float(subject[coordinate])),
        oracle=stated(float(oracle[coordinate])),
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
