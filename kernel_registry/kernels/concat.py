"""Pieces joined along an axis."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from cke.kernel_registry.numeric import place


def concat(*pieces: Array, axis: int, places: Sequence[Sequence[int]] | None = None) -> Array:
    """The pieces joined along an axis, each repeated over the other axes that it lacks."""
    if places is None:
        return jnp.concatenate(pieces, axis=axis)
    rank = max(map(len, places))
    placed = [place(x, at, rank) for x, at in zip(pieces, places, strict=True)]
    common = [max(x.shape[i] for x in placed) for i in range(rank)]
    sized = [(*common[:axis], x.shape[axis], *common[axis + 1 :]) for x in placed]
    return jnp.concatenate(
        [jnp.broadcast_to(x, shape) for x, shape in zip(placed, sized, strict=True)], axis=axis
    )
