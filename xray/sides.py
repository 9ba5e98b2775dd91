"""The two sides of a diagnosis, as X-Ray is handed them (DESIGN section 1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.manifest import Manifest
from cke.xray.weights import OracleWeights

Array = NDArray[Any]


class SubjectSide(Protocol):
    """What is diagnosed: its manifest, captures of chosen edges, its weights as bound."""

    manifest: Manifest
    dtype: str
    constants: dict[str, Any]

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Run the request, and keep the edges it asks for."""
        ...

    def weight(self, semantic: str) -> Array:
        """Return a semantic weight in the run dtype."""
        ...

    def placed(self, phase: str, step: str) -> Mapping[str, Any]:
        """Return the weights of a step as generated code takes them."""
        ...


class Measured(msgspec.Struct, frozen=True):
    """What was measured of an oracle's process: its version, loaded dtypes, lookup tables."""

    version: str | None = None
    loaded: dict[str, int] | None = None
    tables: tuple[Array, ...] = ()


class OracleSide(Protocol):
    """The pinned oracle: its own dtype, loaded tensors, and captures of chosen edges."""

    name: str
    dtype: str
    weight_dtypes: dict[str, int]
    others: tuple[str, ...]
    """The oracles at hand that could give a second opinion."""

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        """Run the request, or read what was recorded, and keep the edges it asks for."""
        ...

    def measured(self) -> Measured:
        """Return what is measured of the oracle, to hold its statements against."""
        ...

    def weights(self) -> OracleWeights | None:
        """Return the loaded weights by checkpoint and operand, None when they are not at hand."""
        ...
