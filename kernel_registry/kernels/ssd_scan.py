"""The state-space scan of Mamba 2, one step at a time in f32."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def ssd_scan(
    slot: Mapping[str, Array] | None,
    x: Array,
    dt: Array,
    a_log: Array,
    b: Array,
    c: Array,
    d: Array,
    positions: Array,
    *,
    groups: int = 1,
    lanes: Sequence[str] = ("h",),
) -> tuple[dict[str, Array], Array]:
    """The new slot, and y [B, T, N, P] of `h ← exp(-exp(a_log)·dt)·h + dt·x⊗b`, `y = h·c + d·x`."""
    batch, length, heads = dt.shape
    u = widen(x).reshape(batch, length, heads, -1)
    step = widen(dt)
    keys = jnp.repeat(widen(b).reshape(batch, length, groups, -1), heads // groups, axis=2)
    reads = jnp.repeat(widen(c).reshape(batch, length, groups, -1), heads // groups, axis=2)
    rate = lift(jnp.exp(widen(a_log)), 2)
    skip = widen(d)[None, :, None]
    shape = (batch, heads, u.shape[-1], keys.shape[-1])
    h = jnp.zeros(shape, jnp.float32) if slot is None else widen(slot[lanes[0]])

    def advance(h: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        u_t, dt_t, b_t, c_t, position = row
        decay = settle(jnp.exp(settle(-rate * dt_t)))[..., None, None]
        gain = settle(settle(dt_t[..., None] * u_t)[..., None] * b_t[:, :, None, :])
        stepped = settle(decay * h) + gain
        h = jnp.where((position >= 0)[:, None, None, None], stepped, h)
        read = lax.dot_general(
            h, c_t, (((3,), (2,)), ((0, 1), (0, 1))), precision=lax.Precision.HIGHEST
        )
        return h, read + settle(skip * u_t)

    over_time = tuple(jnp.moveaxis(a, 1, 0) for a in (u, step, keys, reads, positions))
    h, y = lax.scan(advance, h, over_time)
    dtype = x.dtype if slot is None else slot[lanes[0]].dtype
    return {lanes[0]: store(h, dtype)}, store(jnp.moveaxis(y, 0, 1), x.dtype)
