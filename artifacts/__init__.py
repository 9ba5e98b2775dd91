"""Execution artifacts and differential verification."""

if __name__ == "artifacts":
    raise ImportError(
        "`artifacts` is part of the cke package: write `import cke.artifacts`, not `import artifacts`"
    )
