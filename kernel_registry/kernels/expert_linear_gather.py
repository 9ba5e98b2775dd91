"""The linear of each selected expert over gathered weights: few rows, such as decode."""

import math

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import store


def expert_linear_gather(
    x: Array,
    weight: Array,
    ids: Array,
    bias: Array | None = None,
    *,
    selected: bool,
    contract: int = 1,
) -> Array:
    """The linear of expert `ids[..., a]` at each row; `selected`: x has the expert axis."""
    out = weight.shape[1:-contract]
    width = math.prod(weight.shape[-contract:])
    flat = ids.reshape(-1)
    rows = x.reshape(-1, width)
    rows = rows if selected else jnp.repeat(rows, ids.shape[-1], axis=0)
    gathered = weight.reshape(weight.shape[0], -1, width).at[flat].get(mode="clip")
    y = lax.dot_general(
        rows,
        gathered,
        (((1,), (2,)), ((0,), (0,))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    if bias is not None:
        y = y + bias.reshape(bias.shape[0], -1).at[flat].get(mode="clip").astype(jnp.float32)
    return store(y, x.dtype).reshape(*ids.shape, *out)
