"""CKE: circuits, kernels, evidence."""

__version__ = "0.1.0"
