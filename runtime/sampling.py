"""The next token from logits, on the device: greedy, or seeded temperature, top-k and top-p.

A row's tokens depend on its logits, the seed, the row and how many tokens it has: cutting a
generation into parts changes nothing.
"""

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from cke.errors import CkeError, Diagnostic, Note

SEEDS = 2**63


class Sampling(msgspec.Struct, frozen=True):
    """How to choose a token: temperature 0 is greedy, top_k 0 and top_p 1 keep every token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def seed_words(self) -> np.ndarray:
        """Return the seed as the data of a key: u32[2]."""
        return np.array([self.seed >> 32, self.seed & 0xFFFFFFFF], np.uint32)

    @property
    def form(self) -> "Sampling":
        """The settings that a compiled program depends on: all but the seed."""
        return msgspec.structs.replace(self, seed=0)


GREEDY = Sampling()


def check_sampling(sampling: Sampling) -> Sampling:
    """Return the settings, or raise for one that is out of range."""
    rules = (
        ("temperature", 0 <= sampling.temperature < float("inf"), "a number of at least 0"),
        ("top_k", sampling.top_k >= 0, "an integer of at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "a number above 0 and at most 1"),
        ("seed", 0 <= sampling.seed < SEEDS, "an integer from 0 to 2**63 - 1"),
    )
    wrong = [
        Diagnostic(
            code="CKE606",
            message=f"`{name}` expects {expected}, got {getattr(sampling, name)}",
            notes=(
                Note("temperature 0 is greedy, top_k 0 and top_p 1 keep every token", None, "help"),
            ),
        )
        for name, holds, expected in rules
        if not holds
    ]
    if wrong:
        raise CkeError(wrong)
    return sampling


def choose(logits: Array, numbers: Array, seed: Array, sampling: Sampling) -> Array:
    """Return the chosen tokens i32[B] of logits [B, V]; `numbers` counts a row's tokens so far."""
    wide = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        return jnp.argmax(wide, axis=-1).astype(jnp.int32)
    scores, ids = _kept(wide / np.float32(sampling.temperature), sampling)
    noise = jax.vmap(_gumbel, in_axes=(None, 0, 0, None))(
        seed, jnp.arange(logits.shape[0], dtype=jnp.int32), numbers, scores.shape[-1]
    )
    best = jnp.argmax(scores + noise, axis=-1)
    return jnp.take_along_axis(ids, best[:, None], axis=-1)[:, 0].astype(jnp.int32)


def _kept(scores: Array, sampling: Sampling) -> tuple[Array, Array]:
    """Return scores in falling order and their ids; what top-k and top-p drop is -inf."""
    size = scores.shape[-1]
    ordered, ids = jax.lax.top_k(scores, min(sampling.top_k or size, size))
    if sampling.top_p < 1:
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        ordered = jnp.where(before < np.float32(sampling.top_p), ordered, -jnp.inf)
    return ordered, ids


def _gumbel(seed: Array, row: Array, number: Array, size: int) -> Array:
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.gumbel(
        jax.random.fold_in(jax.random.fold_in(key, row), number), (size,), jnp.float32
    )
