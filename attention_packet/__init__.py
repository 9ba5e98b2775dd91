"""Attention packets: reader, analyzer, exporter.

`analyze(path)` reads `packet.json` and returns an `Analysis`: measurements of one attention call
against an independent reference, or the reason why there are none. NumPy and msgspec suffice.
Non-goal: a verdict. No field, text or exit code judges the size of an error.
"""

if __name__ == "attention_packet":
    raise ImportError(
        "`attention_packet` is part of the cke package: "
        "write `import cke.attention_packet`, not `import attention_packet`"
    )
