"""Rope with f64 angles: the table is rounded to storage, the result once.

Products of two storage values are exact in f64, so a fused multiply-add gives the same bits.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import lift, store
from cke.kernel_registry.rope_tables import frequencies


def _angles(
    positions: Array, factors: Array | None, base: float, width: int, scaling: Any
) -> tuple[Array, float]:
    """f64[B, T, width/2] angles, and the gain of the scaling."""
    table = frequencies(base, width, scaling)
    steps = lift(jnp.asarray(table.short), positions.ndim + 1)
    if table.long is not None:
        is_long = jnp.max(positions, axis=-1, keepdims=True)[..., None] >= table.original
        steps = jnp.where(is_long, lift(jnp.asarray(table.long), positions.ndim + 1), steps)
    if factors is not None:
        steps = steps / lift(factors.astype(jnp.float64), positions.ndim + 1)
    return positions[..., None].astype(jnp.float64) * steps, table.gain


def rope(
    x: Array,
    positions: Array,
    factors: Array | None = None,
    *,
    base: float,
    width: int | None = None,
    pairing: str = "split_half",
    output_order: str = "as_input",
    scaling: Mapping[str, Any] | None = None,
    heads: int = 1,
) -> Array:
    """Each pair of the first `width` values of x, turned by position times frequency."""
    size = x.shape[-1] if width is None else width
    with jax.enable_x64(True):
        angles, gain = _angles(positions, factors, base, size, scaling)
        angles = angles.reshape(*positions.shape, *[1] * heads, size // 2)
        cosine = store(jnp.cos(angles) * gain, x.dtype).astype(jnp.float64)
        sine = store(jnp.sin(angles) * gain, x.dtype).astype(jnp.float64)
        turned = _rotate(x[..., :size].astype(jnp.float64), cosine, sine, pairing, output_order)
        turned = store(turned, x.dtype)
    return turned if size == x.shape[-1] else jnp.concatenate([turned, x[..., size:]], axis=-1)


def _rotate(x: Array, cosine: Array, sine: Array, pairing: str, output_order: str) -> Array:
    half = x.shape[-1] // 2
    if pairing == "split_half":
        first, second = x[..., :half], x[..., half:]
    else:
        first, second = x[..., 0::2], x[..., 1::2]
    a, b = first * cosine - second * sine, second * cosine + first * sine
    if pairing == "interleaved" and output_order == "as_input":
        return jnp.stack([a, b], axis=-1).reshape(x.shape)
    return jnp.concatenate([a, b], axis=-1)
