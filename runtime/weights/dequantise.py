"""The values of a stored tensor, in a float dtype.

Quantised storage is decoded by the gguf package, in runs of whole rows, so that the memory above
the result stays small.
"""

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import DTypeLike, NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor

Array = NDArray[np.generic]
PLAIN: dict[str, DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
QUANTISED = frozenset(
    {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K"}
)
CHUNK = 1 << 22


def dequantise(tensor: LocatedTensor, dtype: np.dtype[np.generic]) -> Array:
    """Return the tensor's values in `dtype`, in its stored shape; CKE430 for storage unknown here.

    A tensor that is stored in `dtype` is mapped, not copied.
    """
    storage = tensor.info.storage
    if storage in PLAIN:
        return _plain(tensor, np.dtype(PLAIN[storage]), dtype)
    if storage not in QUANTISED:
        raise CkeError(
            Diagnostic(
                code="CKE430",
                file=tensor.file.name,
                message=f"expected float or quantised weights, got storage {storage}",
                notes=(Note(f"known: {', '.join([*PLAIN, *sorted(QUANTISED)])}"),),
            )
        )
    kind = GGMLQuantizationType[storage]
    rows = int(np.prod(tensor.info.shape[:-1], dtype=np.int64))
    raw = np.memmap(tensor.file, np.uint8, "r", tensor.offset, (rows, tensor.size // rows))
    result = np.empty((rows, tensor.info.shape[-1]), dtype)
    step = max(1, CHUNK // max(1, tensor.info.shape[-1]))
    for start in range(0, rows, step):
        result[start : start + step] = dequantize(raw[start : start + step], kind)
    return result.reshape(tensor.info.shape)


def _plain(
    tensor: LocatedTensor, stored: np.dtype[np.generic], dtype: np.dtype[np.generic]
) -> Array:
    if tensor.size == 0:
        return np.zeros(tensor.info.shape, dtype)
    mapped: Array = np.memmap(tensor.file, stored, "r", tensor.offset, tensor.info.shape)
    return mapped if stored == dtype else mapped.astype(dtype)
