"""A causal convolution per channel that keeps its last rows."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import lift, settle, store, widen


def depthwise_conv(
    slot: Mapping[str, Array] | None,
    x: Array,
    positions: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    lanes: Sequence[str] = ("x",),
) -> tuple[dict[str, Array], Array]:
    """The new slot, and `y[t] = sum_j weight[:, j] · x[t - (J - 1) + j] + bias`.

    Rows at position -1 are skipped; each row reads the rows with a position before it.
    """
    keep = weight.shape[1] - 1
    batch, _, channels = x.shape
    valid = positions >= 0
    rows = jnp.where(valid[..., None], x, jnp.asarray(0, x.dtype))
    past = jnp.zeros((batch, keep, channels), x.dtype) if slot is None else slot[lanes[0]]
    order = jnp.argsort(~valid, axis=1, stable=True)
    dense = jnp.concatenate([past, jnp.take_along_axis(rows, order[..., None], axis=1)], axis=1)
    before = jnp.cumsum(valid, axis=1, dtype=jnp.int32) - valid.astype(jnp.int32)
    total = jnp.zeros(x.shape, jnp.float32)
    for j in range(keep):
        tap = jnp.take_along_axis(dense, (before + j)[..., None], axis=1)
        total = total + settle(widen(tap) * lift(widen(weight[:, j]), 3))
    total = total + settle(widen(rows) * lift(widen(weight[:, keep]), 3))
    y = total if bias is None else total + lift(widen(bias), 3)
    count = jnp.sum(valid, axis=1, dtype=jnp.int32)[:, None]
    last = count + jnp.arange(keep, dtype=jnp.int32)[None, :]
    kept = jnp.take_along_axis(dense, last[..., None], axis=1)
    return {lanes[0]: kept}, store(y, x.dtype)
