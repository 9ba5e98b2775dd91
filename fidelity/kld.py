"""KL(reference to candidate) per position, in f32 over the real vocabulary, block by block.

Goal: never more than a block of logits of each side. Rows of the head beyond the vocabulary are
cut before the softmax; equal logits give exactly 0.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cke.fidelity.settings import Mode
from cke.runtime.drivers import compiled

TOP = 5
Scores = Callable[..., Any]


class BlockScores(NamedTuple):
    """Of each position: both divergences, the reference's certainty, and the common top prefix."""

    kld: np.ndarray
    reverse: np.ndarray
    reference_top1: np.ndarray
    agreeing: np.ndarray


def block_scores(reference: Array, candidate: Array, vocabulary: int, mode: Mode) -> BlockScores:
    """Return the scores of logits f32[n, V] of both sides, cut to `vocabulary` first."""
    return BlockScores(*map(np.asarray, _run(_scores, reference, candidate, vocabulary, mode)))


def forward_kld(reference: Array, candidate: Array, vocabulary: int, mode: Mode) -> np.ndarray:
    """Return the divergence alone, f32[n], by the arithmetic of `block_scores`."""
    return np.asarray(_run(_forward, reference, candidate, vocabulary, mode))


def _run(function: Scores, first: Array, second: Array, vocabulary: int, mode: Mode) -> Any:
    if mode == "compiled":
        return _compiled(function, vocabulary)(first, second)
    with jax.disable_jit():
        return function(first, second, vocabulary)


def _scores(reference: Array, candidate: Array, vocabulary: int) -> tuple[Array, ...]:
    first, second = reference[:, :vocabulary], candidate[:, :vocabulary]
    ours, theirs = log_softmax(first), log_softmax(second)
    probabilities = jnp.exp(ours)
    difference = ours - theirs
    kld = jnp.sum(probabilities * difference, axis=-1)
    reverse = -jnp.sum(jnp.exp(theirs) * difference, axis=-1) + 0.0
    best, other = top_ids(first), top_ids(second)
    agreeing = jnp.sum(jnp.cumprod((best == other).astype(jnp.int32), axis=-1), axis=-1)
    return kld, reverse, jnp.max(probabilities, axis=-1), agreeing


def _forward(reference: Array, candidate: Array, vocabulary: int) -> Array:
    ours = log_softmax(reference[:, :vocabulary])
    theirs = log_softmax(candidate[:, :vocabulary])
    return jnp.sum(jnp.exp(ours) * (ours - theirs), axis=-1)


def log_softmax(logits: Array) -> Array:
    """Return the f32 log-probabilities of logits [n, V]."""
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))


def top_ids(logits: Array) -> Array:
    """Return the ids of the TOP largest logits, best first, the lower id where they are equal."""
    return lax.top_k(logits, min(TOP, logits.shape[-1]))[1]


@cache
def _compiled(function: Scores, vocabulary: int) -> Callable[[Array, Array], Any]:
    return compiled(partial(function, vocabulary=vocabulary), ())
