"""Attention with f32 scores and softmax; scores and probabilities are results."""

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import settle, store


def visible(
    valid: Array | None,
    positions: Array | None,
    key_positions: Array | None,
    mask: str,
    window: int | None,
) -> Array | None:
    """bool[B, T, S]: the keys that each query reads, by positions alone; None when all."""
    seen = None if valid is None else valid[:, None, :]
    if positions is None or key_positions is None:
        return seen
    query, key = positions[:, :, None], key_positions[:, None, :]
    allowed = key >= 0
    if mask == "causal":
        allowed = allowed & (key <= query)
    if window is not None:
        allowed = allowed & (jnp.abs(query - key) < window)
    return allowed if seen is None else seen & allowed


def softmax(scores: Array, seen: Array | None = None, sinks: Array | None = None) -> Array:
    """f32 softmax of [B, K, G, T, S] over the keys seen; 0 where a query sees none."""
    masked = scores if seen is None else jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = jnp.max(masked, axis=-1, keepdims=True)
    if sinks is not None:
        top = jnp.maximum(top, sinks)
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    weights = settle(jnp.exp(masked - top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + settle(jnp.exp(sinks - top))
    return weights / jnp.where(total == 0, 1.0, total)


def group_heads(x: Array, kv_heads: int, head_map: str, axis: int) -> Array:
    """X with its head axis split into kv heads and the query heads of each."""
    heads = x.shape[axis]
    pair = (kv_heads, heads // kv_heads)
    if head_map == "grouped":
        return x.reshape(*x.shape[:axis], *pair, *x.shape[axis + 1 :])
    split = x.reshape(*x.shape[:axis], *pair[::-1], *x.shape[axis + 1 :])
    return jnp.swapaxes(split, axis, axis + 1)


def merge_heads(x: Array, head_map: str, axis: int) -> Array:
    """The inverse of `group_heads` at `axis`."""
    ordered = x if head_map == "grouped" else jnp.swapaxes(x, axis, axis + 1)
    return ordered.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def by_kv_head(x: Array, kv_heads: int, head_map: str) -> Array:
    """[B, T, H, E] as [B, K, G T, E]: what one kv head meets is one matrix, read row by row."""
    grouped = group_heads(x, kv_heads, head_map, 2)
    return grouped.transpose(0, 2, 3, 1, 4).reshape(x.shape[0], kv_heads, -1, x.shape[-1])


def batched_dot(left: Array, right: Array, axis: int) -> Array:
    """f32 dot of [B, K, M, N] with `axis` of [B, K, .., ..], one for each kv head."""
    return lax.dot_general(
        left,
        right,
        (((3,), (axis,)), ((0, 1), (0, 1))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def scores_of(q: Array, k: Array, scale: float | Array, cap: float | None, head_map: str) -> Array:
    """Scores [B, K, G, T, S] in the dtype of q, after scale and soft cap."""
    batch, keys, kv_heads = k.shape[:3]
    dots = batched_dot(by_kv_head(q, kv_heads, head_map), jnp.swapaxes(k, 1, 2), 3)
    scores = settle(dots * jnp.asarray(scale, jnp.float32))
    if cap is not None:
        scores = settle(cap * jnp.tanh(scores / cap))
    return store(scores, q.dtype).reshape(batch, kv_heads, -1, q.shape[1], keys)


def context_of(probabilities: Array, v: Array, head_map: str) -> Array:
    """f32 context [B, T, H, E] of probabilities [B, K, G, T, S]."""
    batch, kv_heads, groups, length, keys = probabilities.shape
    rows = probabilities.reshape(batch, kv_heads, groups * length, keys)
    context = batched_dot(rows, jnp.swapaxes(v, 1, 2), 2)
    split = context.reshape(batch, kv_heads, groups, length, v.shape[-1])
    return merge_heads(split.transpose(0, 3, 1, 2, 4), head_map, 2)


def sdpa(
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
) -> tuple[Array, Array, Array]:
    """Scores and probabilities [B, H, T, S], and context [B, T, H, E]."""
    scores = scores_of(q, k, scale, softcap, head_map)
    seen = visible(valid, positions, key_positions, mask, window)
    extra = None
    if sinks is not None:
        extra = group_heads(sinks.astype(jnp.float32), k.shape[2], head_map, 0)[
            None, :, :, None, None
        ]
    probabilities = store(softmax(scores.astype(jnp.float32), seen, extra), q.dtype)
    return (
        merge_heads(scores, head_map, 1),
        merge_heads(probabilities, head_map, 1),
        store(context_of(probabilities, v, head_map), q.dtype),
    )
