"""Distribution fidelity: suites, capture, scoring and the laws."""

if __name__ == "fidelity":
    raise ImportError(
        "`fidelity` is part of the cke package: write `import cke.fidelity`, not `import fidelity`"
    )
