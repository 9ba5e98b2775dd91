"""RMSNorm in f32; the normalised value is rounded to storage before the weight."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def normalise(x: Array, gate: Array | None = None, *, eps: float, axes: int, groups: int) -> Array:
    """f32 `x / sqrt(mean(x²) + eps)` over each of `groups` groups of the last `axes` axes."""
    wide = widen(x)
    if gate is not None:
        wide = settle(wide * settle(widen(gate) * lax.logistic(widen(gate))))
    flat = wide.reshape(*x.shape[: x.ndim - axes], groups, -1)
    mean_square = settle(jnp.mean(settle(flat * flat), axis=-1, keepdims=True))
    return settle(flat * lax.rsqrt(mean_square + eps)).reshape(x.shape)


def rms_norm(
    x: Array,
    gate: Array | None = None,
    weight: Array | None = None,
    *,
    eps: float,
    axes: int = 1,
    offset: int = 0,
    groups: int = 1,
) -> Array:
    """`x / sqrt(mean(x²) + eps) · (weight + offset)`, rounded after each of the two products."""
    y = store(normalise(x, gate, eps=eps, axes=axes, groups=groups), x.dtype)
    if weight is None:
        return y
    share = widen(weight) + offset if offset else widen(weight)
    return store(widen(y) * lift(share, x.ndim), x.dtype)
