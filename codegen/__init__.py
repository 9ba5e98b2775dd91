"""Checked tree in; BuildIR, GraphIR, LoweredIR, CallIR and Python text out."""

if __name__ == "codegen":
    raise ImportError(
        "`codegen` is part of the cke package: write `import cke.codegen`, not `import codegen`"
    )
