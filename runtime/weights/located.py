"""Where a tensor's bytes are, and the one place that maps them."""

import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.schemas.model_source import TensorInfo

Array = NDArray[np.generic]
Stamp = tuple[int, int, int]
"""Size, time of change and inode: a file with the same stamp is taken for unchanged."""


class LocatedTensor(msgspec.Struct, frozen=True):
    """A tensor's header and its bytes: `size` bytes from `offset` of `file`.

    A pickled tensor is `held` in memory instead.
    """

    info: TensorInfo
    file: Path
    offset: int
    size: int
    key: str
    stamp: Stamp
    held: Array | None = None


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what must not change between reading a header and reading a value."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def map_tensor(tensor: LocatedTensor, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
    """Return the bytes of the tensor as a read-only array over the file.

    A file that is gone, or has changed since its header was read, is CKE407.
    """
    if tensor.held is not None:
        return tensor.held
    if tensor.size == 0:
        return np.zeros(shape, dtype)
    try:
        if stamp_of(tensor.file.stat()) != tensor.stamp:
            raise CkeError(_changed(tensor, "the file changed after its header was read"))
        return np.memmap(tensor.file, dtype, "r", tensor.offset, shape)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MissingInputError(_changed(tensor, f"cannot be read: {reason.lower()}")) from None


def _changed(tensor: LocatedTensor, message: str) -> Diagnostic:
    help_text = "leave the weights file alone while the model is in use, and open it again"
    return Diagnostic(
        code="CKE407",
        file=tensor.file.name,
        path=tensor.key,
        message=message,
        notes=(Note(help_text, label="help"),),
    )
