"""Circuits and the blocks they share; data only."""

if __name__ == "circuits":
    raise ImportError(
        "`circuits` is part of the cke package: write `import cke.circuits`, not `import circuits`"
    )
