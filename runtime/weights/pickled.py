"""Pickled weights, read by torch with `weights_only=True`, and only when the user asks.

Non-goal: speed, or a small peak; the tensors are held in memory. Safetensors needs neither.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor
from cke.schemas.model_source import TensorInfo

Array = NDArray[np.generic]
STORAGES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def read_pickle(file: Path) -> dict[str, LocatedTensor]:
    """Return the tensors of a torch file by key; anything but a plain state dict is CKE406."""
    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (
        *(pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, RuntimeError),
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError),
    ) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise _bad(file, None, f"expected plain pickled tensors: {reason}") from None
    if not isinstance(found, dict):
        raise _bad(file, None, f"expected a dict of tensors, got a {type(found).__name__}")
    return {str(key): _held(file, str(key), value) for key, value in found.items()}


def _held(file: Path, key: str, value: Any) -> LocatedTensor:
    import torch

    storage = STORAGES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or storage is None:
        raise _bad(file, key, f"expected a dense tensor, got a {type(value).__name__}")
    value = value.detach().contiguous()
    array: Array
    if storage == "BF16":
        array = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = value.numpy()
    info = TensorInfo(tuple(array.shape), storage)
    return LocatedTensor(info, file, 0, array.nbytes, key, (0, 0, 0), array)


def _bad(file: Path, key: str | None, message: str) -> CkeError:
    help_text = "save the model again as safetensors"
    return CkeError(
        Diagnostic(
            code="CKE406",
            file=file.name,
            path=key,
            message=message,
            notes=(Note(help_text, label="help"),),
        )
    )
