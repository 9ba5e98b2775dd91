"""Generated packages, one per library circuit; never edited by hand."""

if __name__ == "generated":
    raise ImportError("this is a folder of the cke package: write `import cke.generated`")
