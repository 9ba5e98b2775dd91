"""The schedule of a capture request."""

import pytest

from cke.errors import CkeError
from cke.runtime.schedule import CaptureRequest, plan_segments


def test_rows_of_unequal_length_are_padded_with_position_minus_one() -> None:
    request = CaptureRequest(tokens=((5, 6, 7), (8,)), segments=(2, 3), forced=((1, 2),))
    first, second, step = plan_segments(request)
    assert first.positions == ((0, 1), (0, -1))
    assert second.positions == ((2,), (-1,))
    assert second.append_index == (2, 1)
    assert step.positions == ((3,), (1,))
    assert step.cache_token_count == (4, 2)
    assert (first.cache_action, second.cache_action) == ("reset", "append")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (CaptureRequest(tokens=((1,), ())), "`tokens` expects at least one token in every row"),
        (
            CaptureRequest(tokens=((1, 2, 3),), segments=(2, 2, 3)),
            "`segments` expects rising end columns that finish at 3, got [2, 2, 3]",
        ),
        (
            CaptureRequest(tokens=((1, 2, 3),), segments=(2,)),
            "`segments` expects rising end columns that finish at 3, got [2]",
        ),
        (
            CaptureRequest(tokens=((1,), (2,)), forced=((1,),)),
            "`forced` expects 2 token(s) a step, one for each row",
        ),
    ],
)
def test_bad_requests_are_refused(request_: CaptureRequest, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        plan_segments(request_)
    assert str(caught.value).startswith("error[CKE701]: ")
    assert message in str(caught.value)
