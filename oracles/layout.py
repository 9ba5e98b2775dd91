"""Named axes of arrays as an oracle exposes them."""

import math
from collections.abc import Mapping
from typing import Any

from cke.errors import CkeError, Diagnostic


def unpack_axes(
    axes: str, shape: tuple[int, ...], sizes: dict[str, int]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return named axes and their sizes: a group `(H E)` is split by the sizes that are known."""
    names: list[str] = []
    result: list[int] = []
    for group, size in zip(_groups(axes), shape, strict=True):
        unknown = [name for name in group if name not in sizes or len(group) == 1]
        known = 1
        for name in group:
            known *= 1 if name in unknown else sizes[name]
        if len(unknown) > 1 or size % known or (not unknown and size != known):
            raise CkeError(
                Diagnostic(
                    code="CKE712",
                    message=f"axes `{axes}` do not fit the shape {list(shape)} that was measured",
                )
            )
        for name in group:
            names.append(name)
            result.append(size // known if name in unknown else sizes[name])
    return tuple(names), tuple(result)


def config_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return H, K, E and D of a transformers config, in its own spellings."""
    heads = config.get("num_attention_heads") or config["n_head"]
    width = config.get("hidden_size") or config["n_embd"]
    return {
        "H": heads,
        "K": config.get("num_key_value_heads") or heads,
        "E": config.get("head_dim") or width // heads,
        "D": width,
    }


def axes_rank(axes: str) -> int:
    """Return how many axes the exposed tensor has."""
    return len(_groups(axes))


def product_size(words: str, sizes: Mapping[str, int]) -> int:
    """Return a size written as products and sums, `N P + 2 G S`."""
    products = (
        [int(w) if w.isdigit() else sizes[w] for w in term.split()] for term in words.split("+")
    )
    return sum(math.prod(factors) for factors in products)


def _groups(axes: str) -> list[list[str]]:
    groups: list[list[str]] = []
    inside = False
    for word in axes.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            inside = True
            groups.append([])
        elif word == ")":
            inside = False
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups
