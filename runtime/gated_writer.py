"""A sink for the neutrality gate: what is no evidence goes to a folder of its own, labelled.

`OUT` holds what the gate let through. Captures that changed a bit stay on disk for whoever looks
for the cause, in `OUT.rejected`, under a status that no reader takes for evidence (XRAY-22).
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.runtime.trace_writer import Given, Mark, TraceWriter, check_free
from cke.schemas.trace import Body, Record, Trace

REJECTED = ".rejected"


class GatedWriter:
    """A trace writer whose captures can be set aside as a whole.

    Raises CkeError when `out`, or the folder beside it for rejected captures, exists.
    """

    def __init__(self, out: Path, expected: int = 4096) -> None:
        self.aside = out.with_name(out.name + REJECTED)
        check_free(self.aside)
        self.out = out
        self.expected = expected
        self.rejected: TraceWriter | None = None
        self.writer = TraceWriter(out, expected)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.__exit__(kind, error, traceback)
        if self.rejected is not None:
            self.rejected.__exit__(kind, error, traceback)

    def add(self, record: Record, array: NDArray[np.generic]) -> None:
        """Keep one capture with its values."""
        self.writer.add(record, array)

    def note(self, record: Record) -> None:
        """Keep one record without values."""
        self.writer.note(record)

    def mark(self) -> Mark:
        """Return a place to rewind to."""
        return self.writer.mark()

    def rewind(self, mark: Mark) -> None:
        """Drop every capture that came after the mark."""
        self.writer.rewind(mark)

    def reject(self) -> None:
        """Set every capture aside and start anew."""
        assert self.rejected is None, "one run is rejected as a whole"
        self.writer.move(self.aside)
        self.rejected = self.writer
        self.writer = TraceWriter(self.out, self.expected)

    def close(self, body: Body, inputs: Given = ()) -> Trace:
        """Finish both folders; the rejected one first, so that it is there when `out` is."""
        if self.rejected is not None:
            kept = body.neutrality.status == "evidence_program"
            label = msgspec.structs.replace(
                body.neutrality,
                status="evidence_program" if kept else "rejected",
                mode="aggregate",
                isolated=(),
                rejected=(),
            )
            self.rejected.close(msgspec.structs.replace(body, neutrality=label), inputs)
        return self.writer.close(body, inputs)
