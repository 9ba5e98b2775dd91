"""Weights files: headers, bindings applied, values."""

from cke.runtime.weights.files import ModelFiles, open_model
from cke.runtime.weights.load import Weights

__all__ = ["ModelFiles", "Weights", "open_model"]
