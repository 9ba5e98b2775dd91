"""Weight-only formats: a matrix to codes and scales, and back; arithmetic in f64, rounded once.

Each format works on rows of the contracted axes, `[out, in]`, in groups along a row. Non-goal:
files; `candidates` writes and reads them.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from cke.fidelity.refusal import refuse

Array = NDArray[Any]
Parts = dict[str, Array]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format: how rows f32[out, in] become parts and parts become rows, group by group."""

    name: str
    group: int
    parameters: tuple[str, ...]
    encode: Callable[[Array, int], Parts]
    decode: Callable[[Parts], Array]


def grouped(rows: Array, group: int) -> Array:
    """Return f64[out, groups, group]; CKE878 where groups do not fill a row."""
    if rows.shape[1] % group:
        refuse("CKE878", f"expected rows of a multiple of {group} weights, got {rows.shape[1]}")
    return rows.astype(np.float64).reshape(len(rows), -1, group)


def _integers(bits: int) -> tuple[Callable[[Array, int], Parts], Callable[[Parts], Array]]:
    limit = 2 ** (bits - 1) - 1

    def encode(rows: Array, group: int) -> Parts:
        parts = grouped(rows, group)
        scales = (np.abs(parts).max(-1) / limit).astype(np.float32)
        safe = np.where(scales == 0, 1, scales).astype(np.float64)
        codes = np.clip(np.rint(parts / safe[..., None]), -limit, limit)
        return {"codes": codes.astype(np.int8).reshape(rows.shape), "scales": scales}

    def decode(parts: Parts) -> Array:
        codes, scales = parts["codes"], parts["scales"]
        wide = codes.reshape(*scales.shape, -1).astype(np.float64) * scales[..., None]
        return np.asarray(wide.reshape(codes.shape), np.float32)

    return encode, decode


def _floats(kind: Any) -> tuple[Callable[[Array, int], Parts], Callable[[Parts], Array]]:
    largest = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]

    def encode(rows: Array, group: int) -> Parts:
        scales = (np.abs(rows.astype(np.float64)).max(-1) / largest).astype(np.float32)
        safe = np.where(scales == 0, 1, scales).astype(np.float64)
        codes = (rows / safe[:, None]).astype(np.float32).astype(kind)
        return {"codes": codes.view(np.uint8), "scales": scales}

    def decode(parts: Parts) -> Array:
        values = parts["codes"].view(kind).astype(np.float64)
        return np.asarray(values * parts["scales"][:, None], np.float32)

    return encode, decode


def _gguf(kind: GGMLQuantizationType) -> tuple[Callable[[Array, int], Parts], Callable[..., Array]]:
    def encode(rows: Array, group: int) -> Parts:
        grouped(rows, group)
        return {"blocks": np.asarray(quantize(np.ascontiguousarray(rows, np.float32), kind))}

    def decode(parts: Parts) -> Array:
        return np.asarray(dequantize(parts["blocks"], kind), np.float32)

    return encode, decode


FP4 = ml_dtypes.float4_e2m1fn
FP4_LARGEST = 6.0
E8M0 = ml_dtypes.float8_e8m0fnu
E4M3 = ml_dtypes.float8_e4m3fn
E4M3_LARGEST = 448.0


def _mxfp4_encode(rows: Array, group: int) -> Parts:
    parts = grouped(rows, group)
    largest = np.abs(parts).max(-1)
    exponent = np.floor(np.log2(np.where(largest == 0, 1, largest))) - 2
    scales = np.exp2(np.clip(exponent, -126, 126)).astype(np.float32)
    codes = (parts / scales[..., None]).astype(np.float32).astype(FP4)
    return {
        "codes": codes.view(np.uint8).reshape(rows.shape),
        "scales": scales.astype(E8M0).view(np.uint8),
    }


def _mxfp4_decode(parts: Parts) -> Array:
    scales = parts["scales"].view(E8M0).astype(np.float64)
    codes = parts["codes"].view(FP4).astype(np.float64).reshape(*scales.shape, -1)
    wide = codes * scales[..., None]
    return np.asarray(wide.reshape(parts["codes"].shape), np.float32)


def _nvfp4_encode(rows: Array, group: int) -> Parts:
    parts = grouped(rows, group)
    largest = np.abs(parts).max(-1)
    whole = np.float32(max(largest.max() / (FP4_LARGEST * E4M3_LARGEST), 1e-30))
    scales = (largest / FP4_LARGEST / np.float64(whole)).astype(np.float32).astype(E4M3)
    used = scales.astype(np.float64) * np.float64(whole)
    safe = np.where(used == 0, 1, used)
    codes = (parts / safe[..., None]).astype(np.float32).astype(FP4)
    return {
        "codes": codes.view(np.uint8).reshape(rows.shape),
        "scales": scales.view(np.uint8),
        "global_scale": np.array([whole], np.float32),
    }


def _nvfp4_decode(parts: Parts) -> Array:
    scales = parts["scales"].view(E4M3).astype(np.float64) * np.float64(parts["global_scale"][0])
    codes = parts["codes"].view(FP4).astype(np.float64).reshape(*scales.shape, -1)
    return np.asarray((codes * scales[..., None]).reshape(parts["codes"].shape), np.float32)


def _made() -> dict[str, Format]:
    pairs: dict[str, tuple[int, tuple[str, ...], Any, Any]] = {}
    for bits in (8, 4):
        pairs[f"int{bits}"] = (32, ("codes", "scales"), *_integers(bits))
    for name, kind in (("e4m3", E4M3), ("e5m2", ml_dtypes.float8_e5m2)):
        pairs[f"fp8_{name}"] = (1, ("codes", "scales"), *_floats(kind))
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        pairs[name.lower()] = (32, ("blocks",), *_gguf(GGMLQuantizationType[name]))
    pairs["mxfp4"] = (32, ("codes", "scales"), _mxfp4_encode, _mxfp4_decode)
    nvfp4 = ("codes", "scales", "global_scale")
    pairs["nvfp4"] = (16, nvfp4, _nvfp4_encode, _nvfp4_decode)
    return {
        name: Format(name=name, group=group, parameters=parts, encode=encode, decode=decode)
        for name, (group, parts, encode, decode) in pairs.items()
    }


FORMATS: dict[str, Format] = _made()


def format_named(name: str) -> Format:
    """Return a format by name; CKE878 for a name that is none."""
    if name not in FORMATS:
        refuse("CKE878", f"expected a format of {', '.join(FORMATS)}, got `{name}`")
    return FORMATS[name]
