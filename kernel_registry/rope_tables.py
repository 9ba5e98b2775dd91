"""Frequencies of rope under a scaling, as constants of the compiled program."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


class Frequencies(NamedTuple):
    """Frequencies per pair; `long` replaces `short` from position `original` on; `gain` of both."""

    short: F64
    long: F64 | None = None
    original: int = 0
    gain: float = 1.0


def frequencies(base: float, width: int, scaling: Mapping[str, Any] | None) -> Frequencies:
    """The frequencies of a base, a rotated width and a scaling."""
    pairs = np.arange(width // 2, dtype=np.float64)
    plain = np.exp(-pairs * (2.0 * math.log(base) / width))
    if scaling is None:
        return Frequencies(plain)
    kind: str = scaling["kind"]
    factor: Any = scaling.get("factor")
    if kind == "linear":
        return Frequencies(plain / factor)
    if kind == "llama3":
        return Frequencies(_llama3(plain, scaling))
    if kind == "yarn":
        kept = _yarn_kept(base, width, scaling)
        gain = _yarn_gain(scaling)
        return Frequencies(plain * (kept + (1.0 - kept) / factor), gain=gain)
    if kind == "longrope":
        return _longrope(plain, scaling)
    raise ValueError(f"no rope scaling is called {kind!r}")


def _llama3(plain: F64, scaling: Mapping[str, Any]) -> F64:
    """The share of each frequency that is kept grows from 0 at `low` turns to 1 at `high`."""
    low, high, factor = scaling["low"], scaling["high"], scaling["factor"]
    turns = plain * scaling["original"] / (2.0 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    scaled: F64 = plain * (kept + (1.0 - kept) / factor)
    return scaled


def _yarn_kept(base: float, width: int, scaling: Mapping[str, Any]) -> F64:
    """The share of each frequency that is kept: 1 for fast pairs, 0 for slow ones."""
    per_turn = scaling["original"] / (2.0 * math.pi)
    edges = [
        width * math.log(per_turn / beta) / (2.0 * math.log(base))
        for beta in (scaling["beta_fast"], scaling["beta_slow"])
    ]
    if scaling.get("truncate", True):
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    first, last = max(edges[0], 0), min(edges[1], width - 1)
    last = last + 0.001 if first == last else last
    pairs = np.arange(width // 2, dtype=np.float64)
    kept: F64 = 1.0 - np.clip((pairs - first) / (last - first), 0.0, 1.0)
    return kept


def _yarn_gain(scaling: Mapping[str, Any]) -> float:
    given, factor = scaling.get("attention_factor"), scaling["factor"]
    if given is not None:
        return float(given)

    def magnitude(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(all_dim) if mscale and all_dim else magnitude(1.0)


def _longrope(plain: F64, scaling: Mapping[str, Any]) -> Frequencies:
    short = plain / np.asarray(scaling["short"], np.float64)
    long = plain / np.asarray(scaling["long"], np.float64)
    gain, factor = scaling.get("attention_factor"), scaling.get("factor")
    if gain is None:
        grown = factor is not None and factor > 1
        ratio = math.log(factor) / math.log(scaling["original"]) if grown and factor else 0.0
        gain = math.sqrt(1.0 + ratio)
    select = scaling.get("select", "by_total_length")
    if select == "by_total_length":
        return Frequencies(short, long, scaling["original"], gain)
    return Frequencies(short if select == "short" else long, gain=gain)
