"""Metrics of one checkpoint."""

import ml_dtypes
import numpy as np
import pytest

from cke.xray.metrics import compare

AXES = ("B", "T", "D")


def _pair() -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    return values, values.copy()


@pytest.mark.contract("XRAY-11")
def test_equal_arrays_are_byte_exact() -> None:
    left, right = _pair()
    metrics = compare(left, right, AXES)
    assert metrics.byte_exact
    assert metrics.exact_ratio == 1.0
    assert metrics.max_abs == 0.0


@pytest.mark.contract("XRAY-11")
def test_the_worst_coordinate_is_named_by_axis_with_both_values() -> None:
    left, right = _pair()
    right[1, 2, 3] += 1.0
    metrics = compare(left, right, AXES)
    assert metrics.worst is not None
    assert metrics.worst.coordinate == {"B": 1, "T": 2, "D": 3}
    assert metrics.worst.subject == float(left[1, 2, 3])
    assert metrics.worst.oracle == float(right[1, 2, 3])
    assert metrics.exact_elements == metrics.total_elements - 1


@pytest.mark.contract("XRAY-11")
def test_a_nan_on_one_side_is_stated_and_never_made_finite() -> None:
    left, right = _pair()
    right[0, 0, 0] = np.nan
    metrics = compare(left, right, AXES)
    assert metrics.max_abs is None
    assert metrics.mismatched_nonfinite == 1
    assert metrics.undefined["max_abs"] == "a non-finite element on one side only"
    assert metrics.worst is not None
    assert metrics.worst.oracle == "NaN"


@pytest.mark.contract("XRAY-11")
def test_a_zero_norm_has_no_cosine_and_says_so() -> None:
    zero = np.zeros((1, 1, 4), np.float32)
    metrics = compare(zero, zero.copy(), AXES)
    assert metrics.cosine is None
    assert metrics.undefined["cosine"] == "a side has zero norm"


def test_padding_rows_are_left_out() -> None:
    left, right = _pair()
    right[0, 2] += 5
    valid = np.array([[True, True, False], [True, True, True]])[:, :, None]
    assert compare(left, right, AXES, valid).byte_exact
    assert not compare(left, right, AXES).byte_exact


def test_negative_zero_is_equal_in_value_and_not_in_bytes() -> None:
    metrics = compare(np.float32([0.0]), np.float32([-0.0]), ("D",))
    assert metrics.exact_ratio == 1.0
    assert not metrics.byte_exact


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_neighbouring_values_are_one_ulp_apart(dtype: type) -> None:
    left = np.array([1.0, -2.0, 0.0], dtype)
    bits = left.view(f"u{left.dtype.itemsize}").copy()
    bits[0] += 1
    metrics = compare(left, bits.view(left.dtype), ("D",))
    assert metrics.max_ulp == 1
