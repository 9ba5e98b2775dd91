"""Float64 definitions of sdpa and of append to a cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cke.kernel_registry.references.elementwise import softcap as _softcap
from cke.kernel_registry.references.types import F64, I32, Bool, Slot


def visible(
    valid: Bool | None,
    positions: I32 | None,
    key_positions: I32 | None,
    mask: str,
    window: int | None,
) -> Bool | None:
    """bool[B, T, S]: which keys each query reads, by positions alone; None when all."""
    seen: Bool | None = None if valid is None else valid[:, None, :]
    if positions is not None and key_positions is not None:
        query, key = positions[:, :, None], key_positions[:, None, :]
        allowed = key >= 0
        if mask == "causal":
            allowed = allowed & (key <= query)
        if window is not None:
            allowed = allowed & (np.abs(query.astype(np.int64) - key) < window)
        seen = allowed if seen is None else seen & allowed
    return seen


def kv_head_of(heads: int, kv_heads: int, head_map: str) -> I32:
    """The kv head of each query head: [0, 0, 1, 1] grouped, [0, 1, 0, 1] interleaved."""
    index = np.arange(heads, dtype=np.int32)
    return index // (heads // kv_heads) if head_map == "grouped" else index % kv_heads


def sdpa(
    q: F64,
    k: F64,
    v: F64,
    valid: Bool | None = None,
    sinks: F64 | None = None,
    positions: I32 | None = None,
    key_positions: I32 | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    mask: str,
    window: int | None = None,
    head_map: str = "grouped",
) -> tuple[F64, F64, F64]:
    """Scores and probabilities [B, H, T, S] and context [B, T, H, E].

    Scores are after scale and soft cap and before the mask. A query that sees no key has
    probabilities and context 0. A sink is one more score per head, without a value.
    """
    at = kv_head_of(q.shape[2], k.shape[2], head_map)
    queries, keys = q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)[:, at]
    scores = _softcap(queries @ keys * scale, cap=softcap)
    seen = visible(valid, positions, key_positions, mask, window)
    probabilities = _softmax(scores, None if seen is None else seen[:, None], sinks)
    values = v.transpose(0, 2, 1, 3)[:, at]
    return scores, probabilities, (probabilities @ values).transpose(0, 2, 1, 3)


def _softmax(scores: F64, seen: Bool | None, sinks: F64 | None) -> F64:
    """The softmax over the keys that are seen, with a sink per head in the sum."""
    masked = scores if seen is None else np.where(seen, scores, -np.inf)
    top = np.max(masked, axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[None, :, None, None])
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(masked - top)
    total = np.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[None, :, None, None] - top)
    return np.where(total == 0, 0.0, weights / np.where(total == 0, 1.0, total))


def append(
    slot: Slot,
    positions: I32,
    *rows: F64,
    lanes: Sequence[str],
    window: int | None = None,
) -> tuple[Any, ...]:
    """The new slot, every row of each lane over S, and the position of each row (-1: empty).

    Rows at position -1 are not written and do not count. With a window the cache is a ring.
    """
    new: Slot = {name: np.array(value) for name, value in slot.items()}
    capacity = new["positions"].shape[1]
    for b in range(positions.shape[0]):
        (kept,) = np.nonzero(positions[b] >= 0)
        at = new["count"][b] + np.arange(len(kept))
        at = at % capacity if window is not None else at
        fits = at < capacity
        new["positions"][b, at[fits]] = positions[b, kept[fits]]
        for name, row in zip(lanes, rows, strict=True):
            new[name][b, at[fits]] = row[b, kept[fits]]
        new["count"][b] += len(kept)
    return (new, *(new[name] for name in lanes), new["positions"])
