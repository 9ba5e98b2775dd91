"""The logistic function."""

from jax import Array, lax

from cke.kernel_registry.numeric import store, widen


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`."""
    wide = widen(x)
    return store(lax.logistic(wide), x.dtype)
