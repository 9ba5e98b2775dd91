"""Two sides for tests of X-Ray: a tiny Llama whose program is the interpreter, faults or none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from cke.api.diagnosis import ModelSubject
from cke.oracles import reference
from cke.oracles.reference_trace import ReferenceOracle
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.runtime.weights.load import Weights
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.graph_ir import Op
from cke.schemas.trace import Identity
from cke.xray.diagnose import diagnose
from cke.xray.sides import Measured

REQUEST = CaptureRequest(tokens=((7, 3, 11, 5, 2, 9),), forced=((4,),))
NOBODY = Identity(
    model_sha256=None, family=None, circuit=None, manifest_sha256=None, tokens_sha256=""
)
Place = tuple[int | None, str, int]
"""A layer, an op, and which of its results."""


@contextmanager
def perturbed(places: tuple[Place, ...]) -> Iterator[None]:
    """Make the edges at the places one percent more than they should be."""
    plain = reference._Frame._apply

    def apply(frame: Any, op: Op) -> tuple[Any, ...]:
        return tuple(
            value * 1.01 if (frame.step.layer, op.id, at) in places else value
            for at, value in enumerate(plain(frame, op))
        )

    reference._Frame._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        reference._Frame._apply = plain  # type: ignore[method-assign]


class Interpreted(ModelSubject):
    """A subject whose program is the interpreter, with faults at some ops."""

    places: tuple[Place, ...] = ()

    @cached_property
    def _exact(self) -> Weights:
        return Weights(self.model.files, self.manifest.bindings, "f64")

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        shutil.rmtree(out, ignore_errors=True)
        with perturbed(self.places), TraceWriter(out) as writer:
            writer.close(
                ReferenceOracle(self.manifest, self._exact, NOBODY).capture(request, writer)
            )
        return read_trace(out)


class Oracle(Interpreted):
    """The interpreter without a fault, as the oracle."""

    name = "reference"
    weight_dtypes: dict[str, int] = {}
    others: tuple[str, ...] = ()

    def weights(self) -> None:
        return None

    def measured(self) -> Measured:
        return Measured()


def diagnosed(
    sides: tuple[Interpreted, Oracle],
    places: tuple[Place, ...],
    folder: Path,
    resume: Diagnosis | None = None,
) -> Diagnosis:
    subject, oracle = sides
    subject.places = places
    shutil.rmtree(folder, ignore_errors=True)
    return diagnose(
        subject,
        oracle,
        REQUEST,
        folder,
        reproduce="cke xray --oracle reference",
        resume=resume,
    )
