"""Reference adapters: what another system computes for the same model and tokens."""

if __name__ == "oracles":
    raise ImportError(
        "`oracles` is part of the cke package: write `import cke.oracles`, not `import oracles`"
    )
