"""The fault catalogue and its scoreboard: X-Ray itself under test."""

if __name__ == "validator":
    raise ImportError("this is a folder of the cke package: write `import cke.validator`")
