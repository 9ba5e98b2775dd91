"""Checked tree in; BuildIR, GraphIR, LoweredIR, CallIR and Python text out."""

if __name__ == "codegen":
    raise ImportError("this is a folder of the cke package: write `import cke.codegen`")
