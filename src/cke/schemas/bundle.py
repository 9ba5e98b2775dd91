"""What a bug bundle adds to a report: the weights of the judged ops, and the model's config."""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_evidence"
VERSION = 1


class KeptWeight(Node, frozen=True):
    """One weight: as the circuit names it, or as a step's kernels take it; `key` names its bytes.

    A weight that was left out for its size has no key.
    """

    kind: Literal["semantic", "placed"]
    name: str
    phase: str | None
    step: str | None
    dtype: str
    shape: tuple[int, ...]
    key: str | None


class Evidence(Node, frozen=True):
    """The index of the kept weights, and the constants that changes are drawn from."""

    schema: str
    version: int
    constants: dict[str, Value]
    weights: tuple[KeptWeight, ...]
