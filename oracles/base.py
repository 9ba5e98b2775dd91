"""What an oracle is to its callers: capture these edges, say what you are.

Goal: X-Ray sees subjects and oracles through small protocols only.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cke.runtime.schedule import CaptureRequest
from cke.schemas.trace import Body, Record

Array = NDArray[np.generic]


class Sink(Protocol):
    """Takes captures one at a time: a trace writer, or a dict in memory."""

    def add(self, record: Record, array: Array) -> None:
        """Keep one capture."""
        ...


class Oracle(Protocol):
    """A pinned reference implementation of one model."""

    name: str

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Run the request, give every capture to `sink`, and return the trace's body.

        `records` of the body is empty: the sink has them.
        """
        ...

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield the loaded weights under the names of the oracle's own file format."""
        ...
