"""How far a kernel may be from its operator's float64 reference: dtype, length, magnitude.

A sum of `length` terms in f32, rounded `roundings` times to storage, is within
``(roundings · u + length · a) · magnitude + floor``: `u` is half an ulp of storage, `a` of f32,
and `magnitude` the sum of the terms' sizes, which is what rounding errors are relative to. A bound
is derived, never fitted; it is inf where an intermediate may overflow f32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.references import REFERENCES

F64 = NDArray[np.float64]

UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}
"""The smallest normal number of a dtype: less may be flushed to 0."""

SUM_UNIT = UNIT["f32"]
GREATEST = 2.0**126
FUNCTION = 24
"""What exp, tanh and their like may be off in f32, in units of 2^-24 of their result."""

EXACT = frozenset(("embedding", "append", "split", "concat", "repeat", "take"))
"""Operators that compute nothing: their kernels give the reference's values exactly."""


class Call(msgspec.Struct, frozen=True):
    """One call: the operator, float64 operands (slot first), keyword arguments and results."""

    operator: str
    dtype: str
    operands: Sequence[Any]
    arguments: Mapping[str, Any]
    results: Sequence[Any]


def leaves(results: Sequence[Any]) -> list[Any]:
    """The arrays of results in order, those of a slot by the order of its names."""
    flat: list[Any] = []
    for value in results:
        flat += [value[name] for name in sorted(value)] if isinstance(value, dict) else [value]
    return flat


def bounds(call: Call) -> list[F64]:
    """The greatest allowed distance from each leaf of the results, elementwise."""
    if call.operator in EXACT:
        return [np.zeros(np.shape(value)) for value in leaves(call.results)]
    return _RULES.get(call.operator, _function)(call)


def _bound(call: Call, roundings: float, length: float, magnitude: F64) -> F64:
    """The bound of a sum of `length` terms of the given magnitude."""
    size = np.abs(magnitude)
    share = roundings * UNIT[call.dtype] + length * SUM_UNIT
    bound: F64 = np.where(size < GREATEST, share * size + 4 * SMALLEST[call.dtype], np.inf)
    return bound


def _sizes(operands: Sequence[Any]) -> list[Any]:
    """The operands with absolute values in place of floats."""
    return [
        np.abs(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for value in operands
    ]


def _function(call: Call) -> list[F64]:
    """A function of one value: a few units of its result, and of small arguments."""
    size = np.abs(call.results[0]) + np.minimum(np.abs(call.operands[0]), 1.0)
    return [_bound(call, 1, FUNCTION, size)]


def _flushed(call: Call, count: int) -> float:
    """What products lose when factors below the smallest normal number are flushed to 0."""
    return SMALLEST[call.dtype] * sum(
        float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0)) for x in call.operands[:count]
    )


def _product(call: Call) -> list[F64]:
    """A product, once rounded."""
    return [_bound(call, 1, 2, call.results[0]) + _flushed(call, 2)]


def _sum(call: Call) -> list[F64]:
    return [_bound(call, 1, 1, REFERENCES["add"](*_sizes(call.operands), **call.arguments))]


def _linear(call: Call) -> list[F64]:
    sizes = _sizes(call.operands)
    contract = call.arguments.get("contract", 3)
    length = int(np.prod(sizes[1].shape[-contract:]))
    return [_bound(call, 1, length + 2, REFERENCES[call.operator](*sizes, **call.arguments))]


def _rms_norm(call: Call) -> list[F64]:
    x, gate, weight = call.operands
    axes = call.arguments.get("axes", 1)
    length = int(np.prod(x.shape[x.ndim - axes :]))
    plain = REFERENCES["rms_norm"](x, gate, None, **{**call.arguments, "offset": 0})
    offset = abs(call.arguments.get("offset", 0))
    share = 1.0 if weight is None else np.abs(weight) + offset
    bound = _bound(call, 2, length + FUNCTION, np.abs(plain) * share)
    over = tuple(range(x.ndim - axes, x.ndim))
    squares = np.sum(x * x, axis=over, keepdims=True)
    return [np.where(squares < GREATEST, bound, np.inf)]


def _layer_norm(call: Call) -> list[F64]:
    """The mean's error is relative to the greatest value, and enters the variance once more."""
    x, weight, bias = call.operands
    axes = call.arguments.get("axes", 1)
    over = tuple(range(x.ndim - axes, x.ndim))
    length = int(np.prod(x.shape[x.ndim - axes :]))
    deviation = np.sqrt(np.var(x, axis=over, keepdims=True) + call.arguments["eps"])
    greatest = np.max(np.abs(x), axis=over, keepdims=True)
    ratio = greatest / deviation * np.ones_like(x)
    share = np.ones(()) if weight is None else np.abs(weight)
    offset = np.zeros(()) if bias is None else np.abs(bias)
    plain = REFERENCES["layer_norm"](x, None, None, eps=call.arguments["eps"], axes=axes)
    stored = _bound(call, 2, FUNCTION, np.abs(plain) * share + offset)
    summed = (length + 4) * SUM_UNIT * ratio * (1 + np.abs(plain)) * share
    squares = np.sum(x * x, axis=over, keepdims=True)
    return [np.where(squares < GREATEST, stored + summed, np.inf)]


def _rope(call: Call) -> list[F64]:
    """Two products with a stored table, stored once."""
    x, result = call.operands[0], call.results[0]
    greatest = np.max(np.abs(x), axis=-1, keepdims=True)
    grown = np.max(np.abs(result), axis=-1, keepdims=True)
    return [_bound(call, 4, 0, np.maximum(greatest, grown) * 2 * np.ones_like(x))]


def _sdpa(call: Call) -> list[F64]:
    """Errors of scores enter probabilities through exp, and those enter the context."""
    q, k, v, *masks = call.operands
    scores, probabilities, _ = call.results
    plain = {**call.arguments, "softcap": None, "scale": abs(call.arguments["scale"])}
    sizes = REFERENCES["sdpa"](np.abs(q), np.abs(k), np.abs(v), *masks, **plain)[0]
    flushed = k.shape[-1] * _flushed(call, 2) * plain["scale"]
    dots = (k.shape[-1] + FUNCTION) * SUM_UNIT * sizes + flushed
    stored = _bound(call, 1, 1, scores)
    wrong = np.where(sizes < GREATEST, dots + stored, np.inf)
    worst = np.max(wrong, axis=-1, keepdims=True)
    grown = np.expm1(np.minimum(2 * worst, 1.0)) + (2 * worst > 1)
    shares = np.minimum(probabilities * grown, 1.0) + np.where(2 * worst > 1, 1.0, 0.0)
    length = k.shape[1] + FUNCTION
    shares = shares + _bound(call, 1, length, probabilities)
    shares = np.where(np.isfinite(worst), shares, np.inf)
    context = _context_bound(call, shares, length)
    return [wrong, shares, np.where(np.isnan(context), np.inf, context)]


def _context_bound(call: Call, shares: F64, length: int) -> F64:
    """What wrong probabilities and the sum over keys make of the context."""
    probabilities, v = call.results[1], np.abs(call.operands[2])
    head_map = call.arguments.get("head_map", "grouped")
    heads, kv_heads = probabilities.shape[1], v.shape[2]
    at = np.arange(heads)
    at = at // (heads // kv_heads) if head_map == "grouped" else at % kv_heads
    values = v.transpose(0, 2, 1, 3)[:, at]
    moved = (shares @ values).transpose(0, 2, 1, 3)
    total: F64 = moved + _bound(call, 1, length, (probabilities @ values).transpose(0, 2, 1, 3))
    return total


def _route(call: Call) -> list[F64]:
    logits, (ids, weights) = call.operands[0], call.results
    greatest = float(np.max(np.abs(logits), initial=0.0))
    length = logits.shape[-1] + FUNCTION + 2 * greatest
    return [np.zeros(ids.shape), _bound(call, 1, length, weights)]


def _combine(call: Call) -> list[F64]:
    size = REFERENCES["combine"](*_sizes(call.operands), **call.arguments)
    return [_bound(call, 1, call.operands[1].shape[-1] + 1, size)]


def _conv(call: Call) -> list[F64]:
    slot, *operands = call.operands
    held = {name: np.abs(value) for name, value in slot.items()}
    size = REFERENCES["depthwise_conv"](held, *_sizes(operands), **call.arguments)[1]
    kept = [np.zeros(np.shape(value)) for value in leaves(call.results[:1])]
    return [*kept, _bound(call, 1, operands[2].shape[1] + 1, size)]


def _scan(call: Call) -> list[F64]:
    """Each step multiplies by a decay that is off by a few units of its exponent."""
    slot, x, dt, a_log, *rest = call.operands
    held = {name: np.abs(value) for name, value in slot.items()}
    sizes = [np.abs(x), np.abs(dt), a_log, *_sizes(rest)]
    states, y = REFERENCES["ssd_scan"](held, *sizes, **call.arguments)
    exponent = float(np.max(np.exp(a_log) * np.max(np.abs(dt))))
    length = dt.shape[1] * (FUNCTION + 2 * exponent) + 4
    state = next(iter(states.values()))
    return [
        _bound(call, 1, length, np.maximum(state, np.abs(leaves(call.results)[0]))),
        _bound(call, 1, length + state.shape[-1], y),
    ]


_RULES: dict[str, Callable[[Call], list[F64]]] = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "scale": _product,
    "clip": _product,
    "relu": _product,
    "relu_squared": _product,
    "linear": _linear,
    "expert_linear": _linear,
    "patch_embed": _linear,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "rope": _rope,
    "sdpa": _sdpa,
    "route": _route,
    "combine": _combine,
    "depthwise_conv": _conv,
    "ssd_scan": _scan,
}
