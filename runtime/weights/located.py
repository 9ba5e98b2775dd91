"""Where a tensor's bytes are."""

from pathlib import Path

import msgspec

from cke.schemas.model_source import TensorInfo


class LocatedTensor(msgspec.Struct, frozen=True):
    """A tensor's header and its bytes: `size` bytes from `offset` of `file`."""

    info: TensorInfo
    file: Path
    offset: int
    size: int
