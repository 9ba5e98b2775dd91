"""The values of a stored tensor, in a float dtype.

Quantised storage is decoded in runs of blocks, so that the memory above the result stays small.
The bits are those of the gguf package: three formats have a faster way to the same bits here, the
others go through it.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import DTypeLike, NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.located import LocatedTensor, map_tensor

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
PLAIN: dict[str, DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
QUANTISED = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
ALIGNMENT = 64
"""An array that starts on such a boundary is placed on the CPU without a copy."""
RUN = 1 << 16
"""Elements decoded at once: the run and its intermediate results stay in the cache."""


def dequantise(
    tensor: LocatedTensor, dtype: np.dtype[np.generic], out: Array | None = None
) -> Array:
    """Return the tensor's values in `dtype`, in its stored shape; CKE430 for storage unknown here.

    They are written to `out` when it is given, a contiguous array of that shape. Otherwise a
    tensor that is stored in `dtype` is mapped, not copied.
    """
    assert out is None or out.shape == tensor.info.shape, "`out` has another shape"
    stored = stored_dtype(tensor)
    if stored is not None:
        return _plain(tensor, stored, dtype, out)
    if tensor.info.storage not in QUANTISED:
        raise _unknown_storage(tensor)
    result = aligned_empty(tensor.info.shape, dtype) if out is None else out
    _decode(tensor, result)
    return result


def stored_dtype(tensor: LocatedTensor) -> np.dtype[np.generic] | None:
    """Return the dtype of a tensor that is stored as floats, None for any other."""
    plain = PLAIN.get(tensor.info.storage)
    return None if plain is None else np.dtype(plain)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return an uninitialised array that starts on an `ALIGNMENT` boundary."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array: Array = raw[start : start + size].view(dtype).reshape(shape)
    return array


def round_once(array: Array, dtype: np.dtype[np.generic], out: Array | None = None) -> Array:
    """Return `array` in `dtype`, each value rounded once, to nearest even."""
    if array.dtype == np.float64 and dtype == ml_dtypes.bfloat16:
        array = _to_odd(array)
    if out is None:
        out = aligned_empty(array.shape, dtype)
    np.copyto(out, array, casting="unsafe")
    return out


def _to_odd(array: Array) -> Floats:
    """f64 to f32 with the last bit set where it is inexact: rounding further is then exact.

    The library's own cast from f64 to bf16 goes through f32 and would round twice.
    """
    with np.errstate(over="ignore"):
        nearest = array.astype(np.float32)
    inexact = np.isfinite(array) & (nearest != array)
    toward_zero = inexact & (np.abs(nearest.astype(np.float64)) > np.abs(array))
    bits = nearest.view(np.uint32)
    bits -= toward_zero.astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return nearest


def _plain(
    tensor: LocatedTensor,
    stored: np.dtype[np.generic],
    dtype: np.dtype[np.generic],
    out: Array | None,
) -> Array:
    mapped = map_tensor(tensor, stored, tensor.info.shape)
    if out is None and stored == dtype:
        return mapped
    return round_once(mapped, dtype, out)


def _unknown_storage(tensor: LocatedTensor) -> CkeError:
    known = f"weights may be stored as {', '.join([*PLAIN, *QUANTISED])}"
    return CkeError(
        Diagnostic(
            code="CKE430",
            file=tensor.file.name,
            path=tensor.key,
            message=f"expected float or quantised weights, got storage {tensor.info.storage}",
            notes=(
                Note(known),
                Note("convert the tensor to one of these, or ignore it by name", label="help"),
            ),
        )
    )


def _decode(tensor: LocatedTensor, result: Array) -> None:
    kind = GGMLQuantizationType[tensor.info.storage]
    block, width = GGML_QUANT_SIZES[kind]
    raw = map_tensor(tensor, np.uint8, (tensor.size // width, width))
    blocks = result.reshape(-1, block)
    assert np.shares_memory(blocks, result) or not result.size, "`out` is not contiguous"
    fast = _FAST.get(tensor.info.storage)
    step = RUN // block
    scratch = np.empty((step, block), np.float32)
    for start in range(0, len(raw), step):
        run = np.asarray(raw[start : start + step], np.uint8)
        target = blocks[start : start + step]
        if fast is None:
            target[...] = dequantize(run, kind)
        elif result.dtype == np.float32:
            fast(run, target.view(np.float32))
        else:
            fast(run, scratch[: len(run)])
            target[...] = scratch[: len(run)]


def _scales(run: Bytes, count: int) -> Floats:
    """The f16 numbers at the head of each block, as f32[blocks, count]."""
    halves = np.ascontiguousarray(run[:, : 2 * count]).view(np.float16)
    return halves.astype(np.float32)


def _q4_0(run: Bytes, out: Floats) -> None:
    scale, packed = _scales(run, 1), run[:, 2:]
    np.multiply((packed & 15).view(np.int8) - np.int8(8), scale, out=out[:, :16])
    np.multiply((packed >> 4).view(np.int8) - np.int8(8), scale, out=out[:, 16:])


def _q4_1(run: Bytes, out: Floats) -> None:
    scales, packed = _scales(run, 2), run[:, 4:]
    np.multiply(packed & 15, scales[:, :1], out=out[:, :16])
    np.multiply(packed >> 4, scales[:, :1], out=out[:, 16:])
    out += scales[:, 1:]


def _q8_0(run: Bytes, out: Floats) -> None:
    np.multiply(run[:, 2:].view(np.int8), _scales(run, 1), out=out)


_FAST: dict[str, Callable[[Bytes, Floats], None]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}
