"""Calls of every kernel over generated shapes: operands, arguments and the contract to meet."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

Random = np.random.Generator


class Case(msgspec.Struct, frozen=True):
    """Operands in float64 (slot first), keyword arguments, and which operands may be hostile."""

    operands: tuple[Any, ...]
    arguments: Mapping[str, Any] = {}
    hostile: tuple[int, ...] = (0,)


def _normal(r: Random, *shape: int) -> np.ndarray:
    return r.standard_normal(shape)


def _sizes(r: Random, count: int, low: int = 1, high: int = 9) -> list[int]:
    return [int(n) for n in r.integers(low, high, count)]


def _positions(r: Random, batch: int, length: int, start: int = 0) -> np.ndarray:
    at = start + np.arange(length)[None].repeat(batch, 0)
    pad = r.integers(0, length, batch)[:, None]
    return np.where(np.arange(length) >= length - pad, -1, at).astype(np.int32)


def embedding(r: Random) -> Case:
    rows, width, length = _sizes(r, 3)
    ids = r.integers(-1, rows, (2, length)).astype(np.int32)
    return Case((ids, _normal(r, rows, width)), hostile=(1,))


def linear(r: Random) -> Case:
    b, t, h, e = _sizes(r, 4)
    d = int(r.choice([1, 3, 64, 257]))
    if r.random() < 0.5:
        bias = _normal(r, h, e) if r.random() < 0.5 else None
        return Case((_normal(r, b, t, d), _normal(r, h, e, d), bias), {"contract": 1})
    return Case((_normal(r, b, t, h, e), _normal(r, d, h, e), _normal(r, d)), {"contract": 2})


def linear_group(r: Random) -> Case:
    sizes = _sizes(r, int(r.integers(2, 5)))
    e, d = _sizes(r, 2, 1, 40)
    bias = _normal(r, sum(sizes), e) if r.random() < 0.5 else None
    arguments = {"contract": 1, "sizes": sizes}
    return Case((_normal(r, 2, 3, d), _normal(r, sum(sizes), e, d), bias), arguments)


def expert_linear(r: Random) -> Case:
    t, x, k, c, d = _sizes(r, 5, 1, 7)
    selected = bool(r.random() < 0.5)
    ids = r.integers(0, x, (2, t, k)).astype(np.int32)
    rows = _normal(r, 2, t, k, d) if selected else _normal(r, 2, t, d)
    bias = _normal(r, x, c) if r.random() < 0.5 else None
    arguments = {"selected": selected, "contract": 1}
    return Case((rows, _normal(r, x, c, d), ids, bias), arguments)


def patch_embed(r: Random) -> Case:
    z, p, d, i, j = _sizes(r, 5, 1, 5)
    return Case((_normal(r, 2, z, p * i, p * j), _normal(r, d, z, p, p), _normal(r, d)))


def rms_norm(r: Random) -> Case:
    groups, h, e = (int(r.choice([1, 2])), 2, int(r.choice([2, 8, 96])))
    axes = int(r.choice([1, 2]))
    shape = (2, 3, h, e)
    gate = _normal(r, *shape) if r.random() < 0.3 else None
    arguments = {"eps": 1e-5, "axes": axes, "offset": int(r.choice([0, 1])), "groups": groups}
    return Case((_normal(r, *shape), gate, _normal(r, *shape[4 - axes :])), arguments)


def layer_norm(r: Random) -> Case:
    d = int(r.choice([2, 7, 96]))
    bias = _normal(r, d) if r.random() < 0.5 else None
    return Case((_normal(r, 2, 3, d) + r.normal(), _normal(r, d), bias), {"eps": 1e-5})


SCALINGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"kind": "linear", "factor": 4.0},
    {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 64},
    {"kind": "yarn", "factor": 4.0, "original": 32, "beta_fast": 32.0, "beta_slow": 1.0},
    {
        "kind": "longrope",
        "short": [1.0] * 4,
        "long": [2.0, 3.0, 4.0, 5.0],
        "original": 9,
        "factor": 4.0,
    },
)


def rope(r: Random) -> Case:
    scaling = SCALINGS[int(r.integers(0, len(SCALINGS)))]
    width = 8 if scaling else int(r.choice([2, 6, 8]))
    heads = int(r.choice([0, 1]))
    shape = (2, 4, 3, 8) if heads else (2, 4, 8)
    start = int(r.choice([0, 6, 4000, 2**20]))
    factors = 1 + r.random(width // 2) if r.random() < 0.3 else None
    arguments = {
        "base": float(r.choice([1e4, 5e5, 1e6])),
        "width": width,
        "pairing": str(r.choice(["split_half", "interleaved"])),
        "output_order": str(r.choice(["as_input", "halves"])),
        "scaling": scaling,
        "heads": heads,
    }
    return Case((_normal(r, *shape), _positions(r, 2, 4, start), factors), arguments)


def sdpa(r: Random) -> Case:
    k, n, e, u = _sizes(r, 4, 1, 5)
    t, s = _sizes(r, 2, 1, 12)
    q, keys, values = (
        _normal(r, 2, t, k * n, e),
        _normal(r, 2, s, k, e),
        _normal(r, 2, s, k, u),
    )
    arguments: dict[str, Any] = {
        "scale": float(e) ** -0.5,
        "softcap": 5.0 if r.random() < 0.3 else None,
        "window": int(r.integers(1, 6)) if r.random() < 0.3 else None,
        "head_map": str(r.choice(["grouped", "interleaved"])),
        "mask": "causal",
    }
    sinks = _normal(r, k * n) if r.random() < 0.3 else None
    if r.random() < 0.3:
        arguments |= {"mask": "bidirectional", "window": None}
        valid = r.random((2, s)) < 0.7
        return Case((q, keys, values, valid, sinks, None, None), arguments, (0, 1, 2))
    at, key_at = _positions(r, 2, t, 4), _positions(r, 2, s)
    return Case((q, keys, values, None, sinks, at, key_at), arguments, (0, 1, 2))


def append(r: Random) -> Case:
    batch, t, s = int(r.choice([1, 2])), int(r.choice([1, 1, 4])), 9
    slot = {
        "k": _normal(r, batch, s, 3),
        "v": _normal(r, batch, s, 2),
        "positions": np.full((batch, s), -1, np.int32),
        "count": r.integers(0, s + 1, batch).astype(np.int32),
    }
    arguments = {"lanes": ["v", "k"], "window": 5 if r.random() < 0.5 else None}
    rows = (_normal(r, batch, t, 2), _normal(r, batch, t, 3))
    return Case((slot, _positions(r, batch, t, 7), *rows), arguments, (2, 3))


def function(r: Random) -> Case:
    return Case((_normal(r, 2, *_sizes(r, 2)) * float(r.choice([0.01, 1, 30])),))


def clip(r: Random) -> Case:
    return Case((_normal(r, 2, 5),), {"low": 0.0, "high": 0.5 if r.random() < 0.5 else None})


def arithmetic(r: Random) -> Case:
    b, t, d = _sizes(r, 3)
    if r.random() < 0.5:
        return Case((_normal(r, b, t, d), _normal(r, b, t, d)), hostile=(0, 1))
    return Case((_normal(r, b, t, d), _normal(r, d)), {"right_axes": [2], "rank": 3}, (0, 1))


def scale(r: Random) -> Case:
    return Case((_normal(r, 2, 5),), {"by": 0.2216})


def softcap(r: Random) -> Case:
    return Case((_normal(r, 2, 5) * 40,), {"cap": 30.0})


def route(r: Random) -> Case:
    groups = int(r.choice([1, 2, 4]))
    arguments = {
        "k": int(r.integers(1, 3)),
        "score": str(r.choice(["softmax", "sigmoid"])),
        "order": str(r.choice(["score_then_topk", "topk_then_score"])),
        "renormalise": bool(r.random() < 0.5),
        "eps": 1e-20,
        "scale": 2.5,
        "groups": groups,
        "groups_kept": int(r.integers(1, groups + 1)),
        "group_score": str(r.choice(["top2_sum", "max"])),
    }
    # Scores that are well apart: ids may not depend on a rounding.
    order = np.stack([r.permutation(8) for _ in range(6)]).reshape(2, 3, 8)
    return Case(((order - 3.5) / 2, None), arguments, ())


def combine(r: Random) -> Case:
    t, k, d = _sizes(r, 3)
    return Case((_normal(r, 2, t, k, d), _normal(r, 2, t, k)), {"axis": 2})


def depthwise_conv(r: Random) -> Case:
    t, y, j = _sizes(r, 3, 1, 6)
    slot = {"c": _normal(r, 2, j - 1, y)}
    bias = _normal(r, y) if r.random() < 0.5 else None
    operands = (slot, _normal(r, 2, t, y), _positions(r, 2, t), _normal(r, y, j), bias)
    return Case(operands, {"lanes": ["c"]}, (1,))


def ssd_scan(r: Random) -> Case:
    t, g, p, s = _sizes(r, 4, 1, 5)
    n = 2 * g
    operands = (
        {"h": _normal(r, 2, n, p, s)},
        _normal(r, 2, t, n * p),
        np.abs(_normal(r, 2, t, n)),
        _normal(r, n),
        _normal(r, 2, t, g * s),
        _normal(r, 2, t, g * s),
        _normal(r, n),
        _positions(r, 2, t),
    )
    return Case(operands, {"groups": g, "lanes": ["h"]}, ())


def split(r: Random) -> Case:
    a, b, d = _sizes(r, 3)
    return Case((_normal(r, 2, a + b, d),), {"axis": 1, "sizes": [a, b]})


def concat(r: Random) -> Case:
    b, t, d = _sizes(r, 3)
    if r.random() < 0.5:
        return Case((_normal(r, b, t, d), _normal(r, b, 2, d)), {"axis": 1}, (0, 1))
    places = [[2], [0, 1, 2]]
    return Case((_normal(r, d), _normal(r, b, t, d)), {"axis": 1, "places": places}, (0, 1))


def repeat(r: Random) -> Case:
    return Case((_normal(r, 2, 3, 4),), {"axis": 2, "size": 5})


def take(r: Random) -> Case:
    return Case((_normal(r, 2, 3, 4),), {"axis": 1, "at": int(r.integers(-3, 3))})


FUNCTIONS = (
    "silu",
    "gelu_tanh",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "relu_squared",
    "sigmoid",
    "tanh",
    "softplus",
)
CASES: dict[str, Callable[[Random], Case]] = {
    "linear_wide": linear,
    "linear_f64": linear,
    "expert_linear_gather": expert_linear,
    "expert_linear_loop": expert_linear,
    "rms_norm_wide": rms_norm,
    "layer_norm_wide": layer_norm,
    "sdpa_context": sdpa,
    "add": arithmetic,
    "subtract": arithmetic,
    "multiply": arithmetic,
    **dict.fromkeys(FUNCTIONS, function),
    **{
        make.__name__: make
        for make in (
            embedding,
            linear,
            linear_group,
            patch_embed,
            rms_norm,
            layer_norm,
            rope,
            sdpa,
            append,
            clip,
            scale,
            softcap,
            route,
            combine,
            depthwise_conv,
            ssd_scan,
            split,
            concat,
            repeat,
            take,
        )
    },
}
