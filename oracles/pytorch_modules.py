"""Modules of a transformers model by path, their arrays, and the weights that they compute with."""

from typing import Any

import torch

from cke.oracles.base import Array
from cke.oracles.layout import product_size
from cke.oracles.points import ModulePoint


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return the tensor's values on the host, in its own dtype."""
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        raw = tensor.detach().contiguous().view(torch.int16).numpy()
        return raw.view(ml_dtypes.bfloat16)
    array: Array = tensor.detach().contiguous().numpy()
    return array


def submodule(module: Any, paths: str) -> Any:
    """Return the first module that is there, of alternatives with `|`; None when none is."""
    found = (_at(module, path.strip()) for path in paths.split("|"))
    return next((item for item in found if item is not None), None)


def _at(module: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        module = module[int(part)] if part.isdigit() else getattr(module, part, None)
        if module is None:
            return None
    return module


def weights_of(
    found: dict[tuple[str, str], Array],
    key: str,
    module: Any,
    point: ModulePoint,
    dims: dict[str, int],
) -> None:
    """Add what a module that makes a checkpoint computes with; containers have none."""
    if module is None or not point.module or point.at != "output" or point.view is not None:
        return
    for operand, tensor in module.named_parameters(recurse=False):
        if operand not in ("weight", "bias"):
            continue
        value = tensor
        if operand == "weight" and type(module).__name__ == "Conv1D":
            value = value.T
        if point.chunk is not None:
            value = value.chunk(point.chunk[1], dim=0)[point.chunk[0]]
        if point.split:
            rows = [product_size(words, dims) for words in point.split]
            value = value.split(rows, dim=0)[point.part]
        found[key, operand] = to_numpy(value)
