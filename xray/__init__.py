"""Evidence in, diagnosis out."""

if __name__ == "xray":
    raise ImportError(
        "`xray` is part of the cke package: write `import cke.xray`, not `import xray`"
    )
