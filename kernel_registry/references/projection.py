"""Float64 definitions of embedding, linear, expert_linear and patch_embed."""

import numpy as np

from cke.kernel_registry.references.types import F64, I32


def embedding(ids: I32, weight: F64) -> F64:
    """Row `ids` of `weight`; ids outside the table read its nearest row."""
    return weight[np.clip(ids, 0, weight.shape[0] - 1)]


def linear(
    x: F64, weight: F64, bias: F64 | None, *, contract: int = 1, start: int | None = None
) -> F64:
    """`x · weightᵀ + bias` over `contract` axes of x that begin at `start`, the last by default."""
    begin = x.ndim - contract if start is None else start
    moved = np.moveaxis(x, range(begin, begin + contract), range(-contract, 0))
    rows, out = moved.shape[:-contract], weight.shape[:-contract]
    width = int(np.prod(weight.shape[-contract:]))
    y = moved.reshape(-1, width) @ weight.reshape(-1, width).T
    y = y.reshape(*rows, *out)
    if bias is not None:
        y = y + bias
    return np.moveaxis(y, range(-len(out), 0), range(begin, begin + len(out)))


def expert_linear(
    x: F64, weight: F64, ids: I32, bias: F64 | None = None, *, selected: bool, contract: int
) -> F64:
    """The linear of expert `ids[..., a]` at each row; `selected`: x has the expert axis."""
    out = weight.shape[1:-contract]
    width = int(np.prod(weight.shape[-contract:]))
    flat_ids = ids.reshape(-1, ids.shape[-1])
    rows = x.reshape(flat_ids.shape[0], -1, width)
    result = np.empty((*flat_ids.shape, int(np.prod(out))))
    for expert in np.unique(flat_ids):
        at, slot = np.nonzero(flat_ids == expert)
        here = rows[at, slot if selected else 0]
        y = here @ weight[expert].reshape(-1, width).T
        result[at, slot] = y if bias is None else y + bias[expert].reshape(-1)
    return result.reshape(*ids.shape, *out)


def patch_embed(pixels: F64, weight: F64, bias: F64 | None) -> F64:
    """A linear over square patches of f64[B, Z, I, J], patches in row-major order."""
    batch, channels, rows, columns = pixels.shape
    patch = weight.shape[-1]
    cut = pixels.reshape(batch, channels, rows // patch, patch, columns // patch, patch)
    patches = cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels, patch, patch)
    return linear(patches, weight, bias, contract=3)
