"""What a bug bundle adds to a report: an index of its files, the judged weights, the config."""

from typing import Literal

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_evidence"
VERSION = 1
INDEX = "cke.xray_bundle"


class Index(Node, frozen=True):
    """Every file of a bundle with the sha256 of its bytes; a file that is not listed is not read.

    `evidence` says what the finding is judged from: values of an op, or the metadata alone.
    """

    schema: str
    version: int
    evidence: Literal["op", "metadata"]
    files: dict[str, str]


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
