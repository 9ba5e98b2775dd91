"""Weight bindings: semantic name → tensor keys of the file, with the transforms between them."""

import msgspec

from cke.errors import Span
from cke.schemas.ir import Node, TensorType, Value


class Transform(Node, frozen=True):
    """One step from the file's arrays to the semantic array, applied in order.

    `reshape` (shape), `transpose` (axes), `slice` (axis, start, stop), `stack` (axis: all sources
    become one array) move elements; `add` (value), `negate`, `log` compute in float64 and round
    once. `purpose` says why: `rope_pairs`, `split`, `conv1d`, `experts`, `norm_offset`, …
    """

    kind: str
    arguments: dict[str, Value] = msgspec.field(default_factory=dict)
    purpose: str | None = None


class WeightBinding(Node, frozen=True):
    """One semantic weight. `sources` are tensor keys in order; `tied_to` is a semantic name."""

    semantic: str
    type: TensorType
    sources: tuple[str, ...]
    transforms: tuple[Transform, ...]
    tied_to: str | None
    span: Span


class Coverage(Node, frozen=True):
    """Every tensor of the weights file: used (by a binding) or ignored (by which pattern)."""

    used: dict[str, tuple[str, ...]]
    ignored: dict[str, str]
