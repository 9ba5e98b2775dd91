"""Circuits and the blocks they share; data only."""

if __name__ == "circuits":
    raise ImportError("this is a folder of the cke package: write `import cke.circuits`")
