"""The fault catalogue and its scoreboard: X-Ray itself under test."""

if __name__ == "validator":
    raise ImportError(
        "`validator` is part of the cke package: write `import cke.validator`, not `import validator`"
    )
