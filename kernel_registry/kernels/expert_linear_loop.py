"""The linear of each selected expert in a loop over all experts: many rows, such as prefill."""

import math

import jax.numpy as jnp
from jax import Array, lax

from cke.kernel_registry.numeric import lift, store


def expert_linear_loop(
    x: Array,
    weight: Array,
    ids: Array,
    bias: Array | None = None,
    *,
    selected: bool,
    contract: int = 1,
) -> Array:
    """The linear of expert `ids[..., a]` at each row; `selected`: x has the expert axis."""
    experts, out = weight.shape[0], weight.shape[1:-contract]
    width = math.prod(weight.shape[-contract:])
    choice = ids.reshape(-1, ids.shape[-1])
    rows = x.reshape(choice.shape[0], choice.shape[1] if selected else 1, width)
    flat = weight.reshape(experts, -1, width)
    offsets = None if bias is None else bias.reshape(experts, -1).astype(jnp.float32)

    def add_expert(expert: Array, total: Array) -> Array:
        y = lax.dot_general(
            rows,
            flat[expert],
            (((2,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        y = y if offsets is None else y + lift(offsets[expert], 3)
        return jnp.where((choice == expert)[..., None], y, total)

    start = jnp.zeros((*choice.shape, flat.shape[1]), jnp.float32)
    y = lax.fori_loop(0, experts, add_expert, start)
    return store(y, x.dtype).reshape(*ids.shape, *out)
