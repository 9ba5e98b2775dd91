"""Attention whose scores and probabilities stay inside: one query block at a time."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.kernels.sdpa import sdpa

BLOCK = 256
"""Queries that are in flight at once; the memory of scores is bounded by this many rows."""


def sdpa_context(
    q: Array,
    k: Array,
    v: Array,
    valid: Array | None = None,
    sinks: Array | None = None,
    positions: Array | None = None,
    key_positions: Array | None = None,
    *,
    scale: float | Array,
    softcap: float | None = None,
    mask: str,
    window: int | None = None,
    head_map: str = "grouped",
) -> tuple[None, None, Array]:
    """The context [B, T, H, E] alone, in the place of the third result."""

    def attend(rows: tuple[Array, Array | None]) -> Array:
        block, at = rows
        return sdpa(
            block,
            k,
            v,
            valid,
            sinks,
            at,
            key_positions,
            scale=scale,
            softcap=softcap,
            mask=mask,
            window=window,
            head_map=head_map,
        )[2]

    batch, length = q.shape[:2]
    if length <= BLOCK or length % BLOCK:
        return None, None, attend((q, positions))

    def blocks(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(batch, -1, BLOCK, *x.shape[2:]), 1, 0)

    context = lax.map(attend, (blocks(q), None if positions is None else blocks(positions)))
    return None, None, jnp.moveaxis(context, 0, 1).reshape(*q.shape[:3], v.shape[-1])
