"""Native bits of the three dtypes: lossless promotion, rounding back, non-finite counts.

Sixteen-bit values are widened by integer arithmetic, because a hardware conversion quiets a
signalling NaN.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from cke.schemas.attention_packet import NonfiniteCounts

Bits = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

BIT_TYPES = {"float16": "<u2", "bfloat16": "<u2", "float32": "<u4"}
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000}
_MAGNITUDE = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFF_FFFF}
_BLOCK = 1 << 16


def native_bits(raw: bytes, dtype: str, shape: tuple[int, ...]) -> Bits:
    """The payload as unsigned integers of its width, without a copy."""
    return np.frombuffer(raw, dtype=BIT_TYPES[dtype]).reshape(shape)


def promote(bits: Bits, dtype: str) -> Float32:
    """float32 values with the same meaning; NaN payloads and signed zeros keep their bits."""
    if dtype == "float32":
        return bits.view("<f4")
    wide = bits.astype(np.uint32)
    if dtype == "bfloat16":
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    return _promote_float16(wide).view(np.float32)


def _promote_float16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    magnitude = bits & np.uint32(0x7FFF)
    sign = (bits ^ magnitude) << np.uint32(16)
    special = magnitude >= 0x7C00
    subnormal = magnitude < 0x0400
    wide = (magnitude << np.uint32(13)) + np.uint32(112 << 23)
    wide[special] += np.uint32(112 << 23)
    if subnormal.any():
        units = magnitude[subnormal].astype(np.float32) * np.float32(2.0**-24)
        wide[subnormal] = units.view(np.uint32)
    return wide | sign


def narrow(values: Float32, dtype: str) -> Bits:
    """Native bits of `values`, rounded to nearest even; NaN stays NaN with its leading payload."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if dtype == "float32":
        return bits
    shift = 16 if dtype == "bfloat16" else 13
    with np.errstate(all="ignore"):
        rounded = _round_bfloat16(bits) if dtype == "bfloat16" else _round_float16(values)
    magnitude = bits & np.uint32(0x7FFF_FFFF)
    is_nan = magnitude > 0x7F80_0000
    payload = (magnitude >> np.uint32(shift)).astype(np.uint16) & np.uint16(_payload_mask(dtype))
    payload = np.where(payload == 0, np.uint16((_payload_mask(dtype) + 1) >> 1), payload)
    sign = (bits >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
    return np.where(is_nan, sign | np.uint16(_INFINITY[dtype]) | payload, rounded)


def _payload_mask(dtype: str) -> int:
    return 0x7F if dtype == "bfloat16" else 0x3FF


def _round_bfloat16(bits: npt.NDArray[np.uint32]) -> Bits:
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def _round_float16(values: Float32) -> Bits:
    return values.astype(np.float16).view(np.uint16)


def round_to(values: Float32, dtype: str) -> Float32:
    """`values` rounded to the dtype, as float32."""
    return promote(narrow(values, dtype), dtype)


def count_nonfinite(bits: Bits, dtype: str) -> NonfiniteCounts:
    """Count NaN and both infinities in native bits, in bounded memory."""
    infinity, mask = _INFINITY[dtype], _MAGNITUDE[dtype]
    nan = positive = negative = 0
    flat = bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        magnitude = block & block.dtype.type(mask)
        infinite = magnitude == infinity
        nan += int(np.count_nonzero(magnitude > infinity))
        positive += int(np.count_nonzero(infinite & (block == magnitude)))
        negative += int(np.count_nonzero(infinite & (block != magnitude)))
    return NonfiniteCounts(nan=nan, positive_infinity=positive, negative_infinity=negative)


def count_nonfinite_values(*arrays: npt.NDArray[Any]) -> NonfiniteCounts:
    """Count NaN and both infinities among float values."""
    nan = positive = negative = 0
    for array in arrays:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            nan += int(np.count_nonzero(np.isnan(block)))
            positive += int(np.count_nonzero(np.isposinf(block)))
            negative += int(np.count_nonzero(np.isneginf(block)))
    return NonfiniteCounts(nan=nan, positive_infinity=positive, negative_infinity=negative)
