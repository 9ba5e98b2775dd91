"""The budget of a checkpoint: what rounding explains, and no more."""

import numpy as np
import pytest

from cke.runtime.schedule import CaptureRequest
from cke.xray.budget import forward_error
from cke.xray.diff import diff_traces
from tests.xray.synthetic import write_trace

REQUEST = CaptureRequest(tokens=((1, 2, 3),))
AXES = ("B", "T", "D")


@pytest.mark.contract("XRAY-13")
def test_a_budget_grows_with_roundoff_depth_and_the_longest_sum() -> None:
    base = forward_error(("fp32", "fp32"), 64, 0, 1.0)
    assert forward_error(("fp32", "bf16"), 64, 0, 1.0).relative_rmse > base.relative_rmse
    assert forward_error(("fp32", "fp32"), 64, 3, 1.0).relative_rmse == 2 * base.relative_rmse
    assert forward_error(("fp32", "fp32"), 4096, 0, 1.0).relative_rmse > base.relative_rmse
    low = forward_error(("bf16", "bf16"), 64, 0, 1.0)
    assert forward_error(("bf16", "bf16"), 4096, 0, 1.0).relative_rmse == low.relative_rmse


def test_an_element_that_stands_out_errs_in_proportion_to_itself() -> None:
    flat = forward_error(("fp32", "fp32"), 64, 0, 1.0, 4.0)
    heavy = forward_error(("fp32", "fp32"), 64, 0, 1.0, 400.0)
    assert flat.max_abs == 16 * flat.relative_rmse
    assert heavy.max_abs == 400 * heavy.relative_rmse
    assert heavy.relative_rmse == flat.relative_rmse


@pytest.mark.contract("XRAY-13")
def test_the_sum_of_an_edge_is_that_of_the_widest_before_it(tmp_path) -> None:
    values = [
        ("embedding", AXES, np.ones((1, 3, 8), np.float32)),
        ("layer.0.wide", AXES, np.ones((1, 3, 600), np.float32)),
        ("layer.0.layer_output", AXES, np.ones((1, 3, 8), np.float32)),
        ("logits", ("B", "T", "V"), np.ones((1, 3, 900), np.float32)),
        ("after", AXES, np.ones((1, 3, 8), np.float32)),
    ]
    subject = write_trace(tmp_path / "a", REQUEST, values)
    rows = diff_traces(subject, write_trace(tmp_path / "b", REQUEST, values)).rows
    assert [row.gate.reduction for row in rows if row.gate] == [1, 8, 600, 600, 600]
