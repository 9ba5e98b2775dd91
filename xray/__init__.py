"""Evidence in, diagnosis out."""

if __name__ == "xray":
    raise ImportError("this is a folder of the cke package: write `import cke.xray`")
