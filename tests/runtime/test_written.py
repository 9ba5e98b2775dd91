"""A trace states where the cache was written, not where it should have been."""

import numpy as np
import pytest

from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.runtime.written import as_written


@pytest.mark.contract("XRAY-39")
def test_the_index_that_was_written_is_read_from_the_cache():
    segment = plan_segments(CaptureRequest(tokens=((3, 4, 5),), forced=((6,),)))[1]
    right = {"layer.0": {"kv": {"positions": np.array([[0, 1, 2, 3]]), "count": np.array([4])}}}
    assert as_written(segment, right) == segment
    early = {"layer.0": {"kv": {"positions": np.array([[0, 1, 3, -1]]), "count": np.array([4])}}}
    assert as_written(segment, early).append_index == (2,)
    lost = {"layer.0": {"kv": {"positions": np.array([[0, 1, 2, -1]]), "count": np.array([3])}}}
    assert as_written(segment, lost).append_index == (-1,)
    assert as_written(segment, lost).cache_token_count == (3,)
    assert as_written(segment, {}) == segment
