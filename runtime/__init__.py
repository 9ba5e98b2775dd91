"""Weights files, sessions, state, sampling and capture of generated packages."""

if __name__ == "runtime":
    raise ImportError("this is a folder of the cke package: write `import cke.runtime`")
