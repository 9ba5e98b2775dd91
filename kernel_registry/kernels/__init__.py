"""Kernels: pure JAX functions, one file per contract stem."""
