"""Operators, kernels and the resolution of exactly one provider per op."""

if __name__ == "kernel_registry":
    raise ImportError("this is a folder of the cke package: write `import cke.kernel_registry`")
