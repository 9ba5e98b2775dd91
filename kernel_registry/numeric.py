"""How kernels keep their bits: rounding points that no fusion and no contraction moves.

A product that meets a sum in one fused loop may become one fused multiply-add, and whether it does
depends on what else the program returns. `settle` ends a product for good; `store` rounds to a
storage dtype in a way that the compiler does not elide.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

MANTISSA = {"bfloat16": (8, 7), "float16": (5, 10)}


def settle(y: Array) -> Array:
    """y, bit for bit; a sum that reads it is not contracted with the product that made it."""
    return jnp.where(jnp.isnan(y), jnp.asarray(jnp.nan, y.dtype), y)


def widen(x: Array) -> Array:
    """X in f32, exactly; f64 stays."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def store(y: Array, dtype: DTypeLike) -> Array:
    """Y rounded to nearest even in `dtype`, even where the compiler may keep excess precision."""
    target = jnp.dtype(dtype)
    if y.dtype == target:
        return settle(y)
    if target.name in MANTISSA:
        return lax.reduce_precision(y, *MANTISSA[target.name]).astype(target)
    return y.astype(target)


def lift(x: Array, rank: int) -> Array:
    """X with leading axes of size 1 up to `rank`."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def place(x: Array, axes: Sequence[int] | None, rank: int | None) -> Array:
    """X with its axes at `axes` of `rank` axes, the others of size 1."""
    if axes is None or rank is None:
        return x
    order = sorted(range(x.ndim), key=lambda i: axes[i])
    shape = [1] * rank
    for i, axis in enumerate(axes):
        shape[axis] = x.shape[i]
    return x.transpose(order).reshape(shape)
