"""Execution artifacts and differential verification."""

if __name__ == "artifacts":
    raise ImportError("this is a folder of the cke package: write `import cke.artifacts`")
