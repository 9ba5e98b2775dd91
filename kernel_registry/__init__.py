"""Operators, kernels and the resolution of exactly one provider per op."""

if __name__ == "kernel_registry":
    raise ImportError(
        "`kernel_registry` is part of the cke package: write `import cke.kernel_registry`, not `import kernel_registry`"
    )
