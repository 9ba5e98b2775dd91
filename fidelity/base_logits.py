"""Base-logits files of llama.cpp's perplexity tool: read, compared with, and labelled exploratory.

The layout: `_logits_`, then i32 n_ctx, n_vocab, n_chunk, then i32 tokens of all chunks; then, for
each position of the second half of each chunk but its last, f32 scale, f32 lowest log-probability
and u16 codes, `scale * code + lowest`, over a vocabulary padded to an even count. Nothing in it
says which model, tokenizer, weights or software wrote it.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.fidelity.digests import file_sha256, token_sha256
from cke.fidelity.refusal import refuse
from cke.fidelity.statistics import mean, quantile

Array = NDArray[Any]
MAGIC = b"_logits_"
CLAMP = 16.0
"""The tool cuts this far below a position's largest logit, and sums nothing below minus this."""
LACKS = {
    "1": "no zero baseline: the reference cannot be scored against a file of rounded values",
    "2": "no determinism settings: batching, kernels and caches of the writer are unknown",
    "3": "tokens belong to no published suite, and only the second half of a chunk is scored",
    "4": "the vocabulary is the writer's head, padding rows included",
    "5": "no manifest binds tokenizer, runtime or cache",
    "6": "no environment, no checkpoint hashes",
    "7": f"log-probabilities are 16-bit codes, cut {CLAMP:g} below the largest logit",
    "8": "no head of the reference, so that trunk and deployed divergence are not told apart",
    "10": "no comparability key: the mean is comparable with no other",
    "12": "a third party cannot verify what the reference was",
    "15": "no strata, no contexts of a suite",
    "16": "the reference's weights are unbound",
}
"""Law → the guarantee that such a file cannot give."""


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """A base-logits file: tokens i32[chunks, n_ctx], and where its distributions begin."""

    path: Path
    tokens: Array
    vocabulary: int
    begins: int

    @property
    def first(self) -> int:
        """The first scored position of a chunk."""
        return int(self.tokens.shape[1]) // 2

    @property
    def positions(self) -> int:
        """How many positions of a chunk are scored."""
        return int(self.tokens.shape[1]) - 1 - self.first

    @property
    def stride(self) -> int:
        """u16 values of one position: scale, lowest, and codes of an even vocabulary."""
        return 4 + 2 * ((self.vocabulary + 1) // 2)

    def log_probabilities(self) -> Iterator[Array]:
        """Yield f32[positions, V] of each chunk, as the codes give them."""
        size = self.positions * self.stride * 2
        with self.path.open("rb") as file:
            file.seek(self.begins)
            for _ in range(len(self.tokens)):
                raw = np.frombuffer(file.read(size), np.uint16).reshape(self.positions, -1)
                scale = raw[:, :2].copy().view(np.float32)
                lowest = raw[:, 2:4].copy().view(np.float32)
                codes = raw[:, 4 : 4 + self.vocabulary].astype(np.float32)
                yield scale * codes + lowest


def read_base(path: Path) -> BaseFile:
    """Return a base-logits file; CKE873 for a file that is none, or not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(MAGIC) + 12)
        if len(head) < len(MAGIC) + 12 or not head.startswith(MAGIC):
            refuse("CKE873", "expected a base-logits file of llama.cpp", file=path.name)
        context, vocabulary, chunks = np.frombuffer(head[len(MAGIC) :], np.int32).tolist()
        count = context * chunks
        if min(context, vocabulary, chunks) < 1 or context < 4 or count * 4 > size:
            text = (
                f"the file says {chunks} chunks of {context} tokens, {vocabulary} of a vocabulary"
            )
            refuse("CKE873", f"{text}; it has {size} bytes", file=path.name)
        tokens = np.frombuffer(file.read(count * 4), np.int32).reshape(chunks, context)
        found = BaseFile(path=path, tokens=tokens, vocabulary=vocabulary, begins=file.tell())
    expected = found.begins + chunks * found.positions * found.stride * 2
    if size != expected:
        refuse(
            "CKE873", f"expected {expected} bytes of log-probabilities, got {size}", file=path.name
        )
    if ((tokens < 0) | (tokens >= vocabulary)).any():
        refuse("CKE873", "a token is outside of the vocabulary", file=path.name)
    return found


def tool_divergence(base: Array, logits: Array) -> Array:
    """Return what the tool sums of each position: stored log-probabilities against f32 logits.

    Positions of the vocabulary at or below -16 are left out, and what was cut is not made up for,
    so that a sum may be a little off, even below zero.
    """
    largest = logits.max(-1, keepdims=True)
    exact = np.exp((logits - largest).astype(np.float32)).sum(-1, keepdims=True, dtype=np.float64)
    own = logits - (largest + np.log(exact).astype(np.float32))
    terms = np.exp(base) * (base - own)
    return np.asarray(np.where(base > -CLAMP, terms, 0).sum(-1, dtype=np.float64))


def renormalised_divergence(base: Array, logits: Array) -> Array:
    """Return KL of the stored distribution, normalised over every entry; never below zero."""
    first = base.astype(np.float64)
    first = first - _log_sum(first)
    second = logits.astype(np.float64)
    second = second - _log_sum(second)
    return np.asarray((np.exp(first) * (first - second)).sum(-1))


def _log_sum(values: Array) -> Array:
    top = values.max(-1, keepdims=True)
    return np.asarray(top + np.log(np.exp(values - top).sum(-1, keepdims=True)))


def score_base(
    base: BaseFile, logits_of: Callable[[Array], Array], name: str, first_token: int | None = None
) -> dict[str, Any]:
    """Return the exploratory report of a model against a base file.

    `logits_of` gives f32[T, V] of i32[T]; `first_token` stands at the start of every chunk where
    the tool put one.
    """
    rows: dict[str, list[Array]] = {"tool": [], "whole": [], "lost": []}
    same = 0
    for tokens, stored in zip(base.tokens, base.log_probabilities(), strict=True):
        given = tokens.copy()
        if first_token is not None:
            given[0] = first_token
        logits = np.asarray(logits_of(given), np.float32)[base.first : base.first + base.positions]
        if logits.shape[1] < base.vocabulary:
            text = f"the file has a vocabulary of {base.vocabulary}, the model {logits.shape[1]}"
            refuse("CKE872", text, file=base.path.name)
        logits = logits[:, : base.vocabulary]
        if not np.isfinite(logits).all():
            refuse("CKE875", "a logit is not finite")
        rows["tool"].append(tool_divergence(stored, logits))
        rows["whole"].append(renormalised_divergence(stored, logits))
        rows["lost"].append(1 - np.exp(stored.astype(np.float64)).sum(-1))
        same += int((stored.argmax(-1) == logits.argmax(-1)).sum())
    joined = {key: np.concatenate(parts) for key, parts in rows.items()}
    count = len(joined["tool"])
    return {
        "kind": "cke-fidelity-base-logits-report",
        "exploratory": True,
        "authoritative": False,
        "lacks": LACKS,
        "base_file_sha256": file_sha256(base.path),
        "token_sha256": token_sha256(tokens.tolist() for tokens in base.tokens),
        "student_model": name,
        "context_length": int(base.tokens.shape[1]),
        "chunks": len(base.tokens),
        "num_positions": count,
        "kld_vocab_size": base.vocabulary,
        "mean_kld_as_the_tool_sums": mean(joined["tool"]),
        "mean_kld": mean(joined["whole"]),
        "median_kld": quantile(joined["whole"], 0.5),
        "p99_kld": quantile(joined["whole"], 0.99),
        "max_kld": float(joined["whole"].max()),
        "negative_positions_as_the_tool_sums": int((joined["tool"] < 0).sum()),
        "mass_off_by_16_bits": {"mean": mean(joined["lost"]), "max_abs": _largest(joined["lost"])},
        "top1_agreement": same / count,
    }


def _largest(values: Array) -> float:
    return float(np.abs(values).max()) if len(values) else math.nan
