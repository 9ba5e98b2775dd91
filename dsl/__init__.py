"""Circuit text in, checked syntax tree out."""

if __name__ == "dsl":
    raise ImportError("`dsl` is part of the cke package: write `import cke.dsl`, not `import dsl`")
