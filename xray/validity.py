"""Which elements of a record both sides computed."""

import numpy as np
from numpy.typing import NDArray

from cke.runtime.validity import valid_mask
from cke.schemas.trace import Record, Segment


def valid_elements(record: Record, segment: Segment) -> NDArray[np.bool_] | None:
    """Return a mask that broadcasts to the record's shape, or None when every element counts."""
    return valid_mask(record.axes, record.shape, segment)
