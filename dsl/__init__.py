"""Circuit text in, checked syntax tree out."""

if __name__ == "dsl":
    raise ImportError("this is a folder of the cke package: write `import cke.dsl`")
