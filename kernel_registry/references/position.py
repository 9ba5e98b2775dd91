"""The float64 definition of rope and of its frequency scalings."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cke.kernel_registry.references.types import F64, I32


def base_frequencies(base: float, width: int) -> F64:
    """`base^(-2i/width)` for the pairs i of a rotated width."""
    exponents: F64 = -np.arange(0, width, 2, dtype=np.float64) / width
    frequencies: F64 = np.power(float(base), exponents)
    return frequencies


def _llama3(frequencies: F64, scaling: Mapping[str, Any]) -> F64:
    """Long waves are slowed by the factor, short ones kept, those between interpolated."""
    waves = 2 * math.pi / frequencies
    low, high, original = scaling["low"], scaling["high"], scaling["original"]
    smooth = (original / waves - low) / (high - low)
    slowed = frequencies / scaling["factor"]
    between = (1 - smooth) * slowed + smooth * frequencies
    chosen: F64 = np.where(
        waves < original / high, frequencies, np.where(waves > original / low, slowed, between)
    )
    return chosen


def _yarn(frequencies: F64, base: float, width: int, scaling: Mapping[str, Any]) -> F64:
    """Interpolated below beta_slow rotations, kept above beta_fast, a linear ramp between."""

    def pair_of(rotations: float) -> float:
        turns = scaling["original"] / (rotations * 2 * math.pi)
        return width * math.log(turns) / (2 * math.log(base))

    low, high = pair_of(scaling["beta_fast"]), pair_of(scaling["beta_slow"])
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(width // 2, dtype=np.float64) - low) / (high - low), 0, 1)
    mixed: F64 = frequencies / scaling["factor"] * ramp + frequencies * (1 - ramp)
    return mixed


def attention_factor(scaling: Mapping[str, Any] | None) -> float:
    """What cosine and sine are multiplied by under a scaling."""
    kind = None if scaling is None else scaling["kind"]
    if scaling is None or kind not in ("yarn", "longrope"):
        return 1.0
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    factor = scaling.get("factor") or 1.0
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(scaling["original"]))
    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def frequencies_of(
    base: float, width: int, scaling: Mapping[str, Any] | None
) -> tuple[F64, F64 | None]:
    """The frequencies, and those of long inputs when the scaling selects by total length."""
    plain = base_frequencies(base, width)
    kind = None if scaling is None else scaling["kind"]
    if scaling is None:
        return plain, None
    if kind == "linear":
        return plain / scaling["factor"], None
    if kind == "llama3":
        return _llama3(plain, scaling), None
    if kind == "yarn":
        return _yarn(plain, base, width, scaling), None
    short = plain / np.asarray(scaling["short"], np.float64)
    long = plain / np.asarray(scaling["long"], np.float64)
    select = scaling.get("select", "by_total_length")
    if select == "by_total_length":
        return short, long
    return (short if select == "short" else long), None


def rope(
    x: F64,
    positions: I32,
    factors: F64 | None,
    *,
    base: float,
    width: int | None = None,
    pairing: str = "split_half",
    output_order: str = "as_input",
    scaling: Mapping[str, Any] | None = None,
    heads: int = 1,
) -> F64:
    """Each pair of the first `width` values, turned by position times frequency.

    `split_half` pairs i with i + width/2, `interleaved` 2i with 2i + 1. Under `by_total_length`
    a row whose greatest position reaches `original` takes the long frequencies.
    """
    size = x.shape[-1] if width is None else width
    short, long = frequencies_of(base, size, scaling)
    steps = np.broadcast_to(short, (*positions.shape, size // 2))
    if long is not None and scaling is not None:
        is_long = np.max(positions, axis=-1, keepdims=True)[..., None] + 1 > scaling["original"]
        steps = np.where(is_long, long, steps)
    steps = steps if factors is None else steps / factors
    angles = positions[..., None].astype(np.float64) * steps
    angles = angles.reshape(*positions.shape, *[1] * heads, size // 2)
    gain = attention_factor(scaling)
    return rotate(x, np.cos(angles) * gain, np.sin(angles) * gain, pairing, output_order)


def rotate(x: F64, cosine: F64, sine: F64, pairing: str, output_order: str) -> F64:
    """The pairs of x turned by the angles of `cosine` and `sine`; the rest passes."""
    half = cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if pairing == "split_half":
        first, second = turned[..., :half], turned[..., half:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    a, b = first * cosine - second * sine, second * cosine + first * sine
    if pairing == "interleaved" and output_order == "as_input":
        out = np.stack([a, b], axis=-1).reshape(turned.shape)
    else:
        out = np.concatenate([a, b], axis=-1)
    return np.concatenate([out, rest], axis=-1)
