"""Generated packages, one per library circuit; never edited by hand."""

if __name__ == "generated":
    raise ImportError(
        "`generated` is part of the cke package: write `import cke.generated`, not `import generated`"
    )
