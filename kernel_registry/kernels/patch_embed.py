"""A linear over square patches of an image."""

from jax import Array

from cke.kernel_registry.kernels.linear import linear


def patch_embed(pixels: Array, weight: Array, bias: Array | None = None) -> Array:
    """Patches of [B, Z, I, J] in row-major order, each through one linear: [B, T, D]."""
    batch, channels, rows, columns = pixels.shape
    patch = weight.shape[-1]
    cut = pixels.reshape(batch, channels, rows // patch, patch, columns // patch, patch)
    patches = cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels, patch, patch)
    return linear(patches, weight, bias, contract=3)
