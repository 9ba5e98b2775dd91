"""Reference adapters: what another system computes for the same model and tokens."""

if __name__ == "oracles":
    raise ImportError("this is a folder of the cke package: write `import cke.oracles`")
