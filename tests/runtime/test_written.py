"""A trace states where the cache was written, not where it should have been."""

import numpy as np
import pytest

from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.runtime.written import as_written, held_positions


@pytest.mark.contract("XRAY-39")
def test_the_index_that_was_written_is_read_from_the_cache():
    segment = plan_segments(CaptureRequest(tokens=((3, 4, 5),), forced=((6,),)))[1]
    before = np.array([[0, 1, 2, -1]])

    def after(*positions: int) -> dict[str, dict[str, dict[str, np.ndarray]]]:
        return {"layer.0": {"kv": {"positions": np.array([positions]), "count": np.array([4])}}}

    assert as_written(segment, before, after(0, 1, 2, 3)) == segment
    assert as_written(segment, before, after(0, 1, 2, 0)) == segment
    early = as_written(segment, before, after(0, 1, 3, -1))
    assert (early.append_index, early.cache_token_count) == ((2,), (3,))
    assert as_written(segment, before, after(0, 1, 2, -1)).append_index == (-1,)
    assert as_written(segment, None, {}) == segment
    assert held_positions({}) is None
