"""Selection of experts in f32; equal scores prefer the lower id."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, settle, store, widen


def _keep_groups(choice: Array, groups: int, kept: int, group_score: str) -> Array:
    """The choice with -inf outside the best `kept` groups of experts."""
    grouped = choice.reshape(*choice.shape[:-1], groups, -1)
    if group_score == "max":
        totals = jnp.max(grouped, axis=-1)
    else:
        width = min(2, grouped.shape[-1])
        totals = jnp.sum(lax.top_k(grouped, width)[0], axis=-1)
    best = lax.top_k(totals, kept)[1]
    allowed = jnp.any(jax.nn.one_hot(best, groups, dtype=jnp.bool_), axis=-2)
    return jnp.where(allowed[..., None], grouped, -jnp.inf).reshape(choice.shape)


def weigh(
    scores: Array, ids: Array, order: str, renormalise: bool, eps: float, scale: float, score: str
) -> Array:
    """The f32 weights of the experts `ids`, whoever chose them, by the router's own scores."""
    weights = jnp.take_along_axis(scores, ids, axis=-1)
    if order == "topk_then_score":
        weights = scoring(score)(weights)
    if renormalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + eps)
    return weights if scale == 1 else settle(weights * scale)


def scoring(score: str) -> Callable[[Array], Array]:
    """The function from logits to scores."""
    return jax.nn.softmax if score == "softmax" else lax.logistic


def route(
    logits: Array,
    choice_bias: Array | None = None,
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
    forced: Array | None = None,
) -> tuple[Array, Array]:
    """The ids of k experts per row, best first, and their weights; `forced` gives the ids."""
    wide = widen(logits)
    scores = scoring(score)(wide) if order == "score_then_topk" else wide
    if forced is not None:
        weights = weigh(scores, forced, order, renormalise, eps, scale, score)
        return forced, store(weights, logits.dtype)
    choice = scores if choice_bias is None else scores + lift(widen(choice_bias), scores.ndim)
    if groups > groups_kept:
        choice = _keep_groups(choice, groups, groups_kept, group_score)
    ids = lax.top_k(choice, k)[1].astype(jnp.int32)
    weights = weigh(scores, ids, order, renormalise, eps, scale, score)
    return ids, store(weights, logits.dtype)
