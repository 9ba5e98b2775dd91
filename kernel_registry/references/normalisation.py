"""Float64 definitions of rms_norm and layer_norm."""

import numpy as np

from cke.kernel_registry.references.elementwise import silu
from cke.kernel_registry.references.types import F64


def rms_norm(
    x: F64,
    gate: F64 | None,
    weight: F64 | None,
    *,
    eps: float,
    axes: int = 1,
    offset: int = 0,
    groups: int = 1,
) -> F64:
    """`x / sqrt(mean(x²) + eps) · (weight + offset)`, the mean over each of `groups` groups."""
    gated = x if gate is None else x * silu(gate)
    flat = gated.reshape(*x.shape[: x.ndim - axes], groups, -1)
    mean_square = np.mean(flat * flat, axis=-1, keepdims=True)
    normalised: F64 = (flat / np.sqrt(mean_square + eps)).reshape(x.shape)
    return normalised if weight is None else normalised * (weight + offset)


def layer_norm(x: F64, weight: F64 | None, bias: F64 | None, *, eps: float, axes: int = 1) -> F64:
    """`(x - mean) / sqrt(variance + eps) · weight + bias` over the last `axes` axes."""
    over = tuple(range(-axes, 0))
    centred = x - np.mean(x, axis=over, keepdims=True)
    variance = np.mean(centred * centred, axis=over, keepdims=True)
    y: F64 = centred / np.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
