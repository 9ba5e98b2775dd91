"""Float64 definitions of the elementwise operators."""

import math
from collections.abc import Sequence

import numpy as np

from cke.kernel_registry.references.types import F64


def sigmoid(x: F64) -> F64:
    """`1 / (1 + exp(-x))`, without overflow."""
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


def silu(x: F64) -> F64:
    """`x · sigmoid(x)`; 0 at -inf."""
    return _product(x, sigmoid(x))


def _product(x: F64, share: F64) -> F64:
    """`x · share` where a share of 0 wins over an infinite x, as in the limit."""
    return np.where((share == 0) & ~np.isnan(x), 0.0, x * np.where(share == 0, 1.0, share))


def gelu_tanh(x: F64) -> F64:
    """`x/2 · (1 + tanh(sqrt(2/pi) · (x + 0.044715 x³)))`."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return _product(x, sigmoid(2 * inner))


def gelu_erf(x: F64) -> F64:
    """`x · Phi(x)` of the standard normal distribution."""
    return _product(x, np.where(x < 0, _erfc(-x / math.sqrt(2)), 2 - _erfc(x / math.sqrt(2))) / 2)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gelu_quick(x: F64) -> F64:
    """`x · sigmoid(1.702 x)`."""
    return _product(x, sigmoid(1.702 * x))


def relu(x: F64) -> F64:
    """`max(x, 0)`."""
    return np.maximum(x, 0.0)


def relu_squared(x: F64) -> F64:
    """`max(x, 0)²`."""
    return np.square(np.maximum(x, 0.0))


def tanh(x: F64) -> F64:
    """The hyperbolic tangent."""
    return np.tanh(x)


def softplus(x: F64) -> F64:
    """`log(1 + exp(x))`, without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def clip(x: F64, *, low: float | None = None, high: float | None = None) -> F64:
    """`x` limited to [low, high]; NaN stays."""
    raised = x if low is None else np.maximum(x, low)
    return raised if high is None else np.minimum(raised, high)


def place(x: F64, axes: Sequence[int] | None, rank: int | None) -> F64:
    """`x` with its axes at `axes` of `rank` axes, the others of size 1."""
    if axes is None or rank is None:
        return x
    order = sorted(range(x.ndim), key=lambda i: axes[i])
    shape = [1] * rank
    for i, axis in enumerate(axes):
        shape[axis] = x.shape[i]
    return x.transpose(order).reshape(shape)


def add(
    left: F64,
    right: F64,
    *,
    left_axes: Sequence[int] | None = None,
    right_axes: Sequence[int] | None = None,
    rank: int | None = None,
) -> F64:
    """`left + right`, each with its axes at the given places of the result."""
    return place(left, left_axes, rank) + place(right, right_axes, rank)


def subtract(
    left: F64,
    right: F64,
    *,
    left_axes: Sequence[int] | None = None,
    right_axes: Sequence[int] | None = None,
    rank: int | None = None,
) -> F64:
    """`left - right`, each with its axes at the given places of the result."""
    return place(left, left_axes, rank) - place(right, right_axes, rank)


def multiply(
    left: F64,
    right: F64,
    *,
    left_axes: Sequence[int] | None = None,
    right_axes: Sequence[int] | None = None,
    rank: int | None = None,
) -> F64:
    """`left · right`, each with its axes at the given places of the result."""
    return place(left, left_axes, rank) * place(right, right_axes, rank)


def round_to(value: float, dtype: str) -> float:
    """`value` rounded to nearest even in f64, f32, f16 or bf16."""
    if dtype == "f64":
        return value
    if dtype == "f16":
        return float(np.float16(value))
    if dtype == "f32":
        return float(np.float32(value))
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def scale(x: F64, *, by: float, constant: str = "f32", dtype: str = "f32") -> F64:
    """`x · by`, the constant rounded to f32, or to `dtype` when it is `storage`."""
    return x * round_to(by, dtype if constant == "storage" else "f32")


def softcap(x: F64, *, cap: float | None) -> F64:
    """`cap · tanh(x / cap)`."""
    return x if cap is None else cap * np.tanh(x / cap)
