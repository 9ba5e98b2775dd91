"""Near-duplicate texts, by MinHash over shingles of five words."""

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

PERMUTATIONS = 128
SHINGLE = 5
JACCARD = 0.8
PRIME = (1 << 61) - 1
Signature = NDArray[np.uint64]


def duplicates(texts: list[str], threshold: float = JACCARD) -> dict[int, tuple[int, float]]:
    """Return each text that nearly repeats an earlier, kept one: index → (that one, estimate)."""
    signatures = [signature(text) for text in texts]
    found: dict[int, tuple[int, float]] = {}
    kept: list[int] = []
    for index, mine in enumerate(signatures):
        scores = [(float(np.mean(mine == signatures[other])), other) for other in kept]
        best = max(scores, default=(0.0, -1))
        if best[0] >= threshold:
            found[index] = (best[1], best[0])
        else:
            kept.append(index)
    return found


def signature(text: str) -> Signature:
    """Return the MinHash signature of a text: the least hash under each permutation."""
    words = re.findall(r"\w+", text.lower())
    width = max(1, len(words) - SHINGLE + 1)
    shingles = {" ".join(words[i : i + SHINGLE]) for i in range(width)}
    values = np.array(
        [int.from_bytes(hashlib.sha256(item.encode()).digest()[:4]) for item in sorted(shingles)],
        np.uint64,
    )
    generator = np.random.default_rng(0)
    factors = generator.integers(1, 1 << 29, PERMUTATIONS, np.uint64)
    offsets = generator.integers(0, 1 << 29, PERMUTATIONS, np.uint64)
    hashed = (factors[:, None] * values[None] + offsets[:, None]) % np.uint64(PRIME)
    least: Signature = hashed.min(axis=1)
    return least
