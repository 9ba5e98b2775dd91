"""Attention packets: reader, analyzer, exporter."""

if __name__ == "attention_packet":
    raise ImportError(
        "`attention_packet` is part of the cke package: write `import cke.attention_packet`, not `import attention_packet`"
    )
