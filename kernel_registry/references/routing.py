"""Float64 definitions of route and combine."""

import numpy as np

from cke.kernel_registry.references.elementwise import sigmoid
from cke.kernel_registry.references.types import F64, I32


def _softmax(x: F64) -> F64:
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    shares: F64 = weights / np.sum(weights, axis=-1, keepdims=True)
    return shares


def _top(x: F64, k: int) -> I32:
    """The k greatest of the last axis, greatest first, the lower index first among equals."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def _keep_groups(choice: F64, groups: int, kept: int, group_score: str) -> F64:
    """The choice with -inf outside the best `kept` groups of experts."""
    grouped = choice.reshape(*choice.shape[:-1], groups, -1)
    if group_score == "max":
        totals = np.max(grouped, axis=-1)
    else:
        totals = np.sum(-np.sort(-grouped, axis=-1)[..., :2], axis=-1)
    allowed = np.zeros(totals.shape, np.bool_)
    np.put_along_axis(allowed, _top(totals, kept), True, axis=-1)
    return np.where(allowed[..., None], grouped, -np.inf).reshape(choice.shape)


def route(
    logits: F64,
    choice_bias: F64 | None,
    *,
    k: int,
    score: str = "softmax",
    order: str = "score_then_topk",
    renormalise: bool = True,
    eps: float = 0.0,
    scale: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    group_score: str = "top2_sum",
) -> tuple[I32, F64]:
    """The ids of k experts per row, best first, and their weights.

    The choice bias and the groups bear on the choice alone, never on the weights.
    """
    function = _softmax if score == "softmax" else sigmoid
    scores = function(logits) if order == "score_then_topk" else logits
    choice = scores if choice_bias is None else scores + choice_bias
    if groups > groups_kept:
        choice = _keep_groups(choice, groups, groups_kept, group_score)
    ids = _top(choice, k)
    weights = np.take_along_axis(scores, ids, axis=-1)
    if order == "topk_then_score":
        weights = function(weights)
    if renormalise:
        weights = weights / (np.sum(weights, axis=-1, keepdims=True) + eps)
    return ids, weights * scale


def combine(y: F64, weights: F64, *, axis: int) -> F64:
    """The sum of y over the expert axis, weighted."""
    share = weights.reshape(*weights.shape, *[1] * (y.ndim - weights.ndim))
    total: F64 = np.sum(y * share, axis=axis)
    return total
