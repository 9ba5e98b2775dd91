"""Named axes of what oracles expose."""

import pytest

from cke.errors import CkeError
from cke.oracles.layout import unpack_axes

SIZES = {"B": 2, "T": 3, "H": 4, "K": 2, "E": 8}


def test_a_group_is_split_by_the_sizes_that_are_known() -> None:
    assert unpack_axes("B T (H E)", (2, 3, 32), SIZES) == (("B", "T", "H", "E"), (2, 3, 4, 8))
    assert unpack_axes("(B T) X", (6, 5), SIZES) == (("B", "T", "X"), (2, 3, 5))


def test_axes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CkeError, match=r"CKE712\]: axes `B T \(H E\)` do not fit the shape"):
        unpack_axes("B T (H E)", (2, 3, 30), SIZES)
