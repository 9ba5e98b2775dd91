"""The reference: softmax(scale * q k^T) v of one token, head by head, in bounded memory.

float32 is the packet's primary arithmetic; float64 is our labelled addition. Keys and values are
promoted block by block, so that no whole tensor is ever widened.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cke.attention_packet.bits import Bits, Float32, count_nonfinite_values, promote
from cke.schemas.attention_packet import NonfiniteCounts

Float = npt.NDArray[Any]
_BLOCK_ELEMENTS = 1 << 17
_SCORE_ELEMENTS = 1 << 18


class Attention(msgspec.Struct, frozen=True):
    """The result [QH, D], and what was not finite on the way to it."""

    output: Float
    nonfinite: NonfiniteCounts


class History(msgspec.Struct, frozen=True):
    """Native bits of stored keys and values, each [KVH, T, D]."""

    keys: Bits
    values: Bits
    dtype: str


def attend(
    queries: Float32, history: History, scale: float, precision: type = np.float32
) -> Attention:
    """Attention of f32[QH, D] over the history; query head h reads kv head h // (QH / KVH)."""
    kv_heads, tokens, _ = history.keys.shape
    group = queries.shape[0] // kv_heads
    rows = max(1, min(group, _SCORE_ELEMENTS // tokens))
    output: Float = np.zeros(queries.shape, dtype=precision)
    counts: list[NonfiniteCounts] = []
    with np.errstate(all="ignore"):
        for first in range(0, queries.shape[0], rows if group % rows == 0 else 1):
            last = first + (rows if group % rows == 0 else 1)
            kv_head = first // group
            part, found = _attend_head(
                queries[first:last].astype(precision), history, kv_head, precision(scale)
            )
            output[first:last] = part
            counts.append(found)
    return Attention(output, _sum(counts))


def _attend_head(
    queries: Float, history: History, kv_head: int, scale: Any
) -> tuple[Float, NonfiniteCounts]:
    """Rows of one kv head: scores, softmax with the row maximum subtracted, weighted values."""
    keys, values = history.keys[kv_head], history.values[kv_head]
    weights = np.empty((queries.shape[0], keys.shape[0]), dtype=queries.dtype)
    for block in _blocks(keys):
        wide = promote(keys[block], history.dtype).astype(queries.dtype, copy=False)
        np.matmul(queries, wide.T, out=weights[:, block])
    weights *= scale
    scores = count_nonfinite_values(weights)
    weights -= weights.max(axis=1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=1, keepdims=True)
    result = np.zeros_like(queries)
    for block in _blocks(values):
        result += weights[:, block] @ promote(values[block], history.dtype).astype(
            queries.dtype, copy=False
        )
    return result, _sum([scores, count_nonfinite_values(weights, result)])


def _blocks(rows: Bits) -> Iterator[slice]:
    size = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, rows.shape[0], size):
        yield slice(start, min(start + size, rows.shape[0]))


def _sum(counts: list[NonfiniteCounts]) -> NonfiniteCounts:
    return NonfiniteCounts(
        nan=sum(item.nan for item in counts),
        positive_infinity=sum(item.positive_infinity for item in counts),
        negative_infinity=sum(item.negative_infinity for item in counts),
    )
