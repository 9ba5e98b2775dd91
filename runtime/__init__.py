"""Weights files, sessions, state, sampling and capture of generated packages."""

if __name__ == "runtime":
    raise ImportError(
        "`runtime` is part of the cke package: write `import cke.runtime`, not `import runtime`"
    )
