"""The mapping file of an oracle import: which tensor of a dump is which checkpoint; TOML.

Everything in it is what a user declares about a dump that was made elsewhere: nothing is taken for
measured. `{L}` stands for the layer in `checkpoint`, `file` and `key`.
"""

from cke.schemas.ir import Node, Value

SCHEMA = "cke.oracle_mapping"
VERSION = 1


class DeclaredProducer(Node, frozen=True):
    """Who made the dump, as the user says; `dtype` is f32, bf16, f16 or f64."""

    name: str
    version: str
    dtype: str
    settings: dict[str, Value] = {}


class MappedTensor(Node, frozen=True):
    """One checkpoint, or one per layer.

    `file` is relative to the dump; `key` names a tensor inside a .safetensors or .pt file.
    `axes` are those of the stored tensor, slowest first; a group such as `(H E)` is one stored
    axis. Without `B` the dump holds a batch of one. `segment` counts the forwards from 0.
    """

    checkpoint: str
    file: str
    axes: str
    key: str | None = None
    role: str | None = None
    segment: int = 0
    layers: tuple[int, ...] | None = None
    derivation: str | None = None


class OracleMapping(Node, frozen=True):
    """The whole file: `layers` is how many `{L}` counts, `sizes` splits groups of axes.

    `ignore` lists files of the dump, or `file#key`, that hold no checkpoint; `*` matches any text.
    """

    schema: str
    version: int
    producer: DeclaredProducer
    tensor: tuple[MappedTensor, ...]
    layers: int = 0
    sizes: dict[str, int] = {}
    ignore: tuple[str, ...] = ()
