"""Attention packets: reader, analyzer, exporter."""

if __name__ == "attention_packet":
    raise ImportError("this is a folder of the cke package: write `import cke.attention_packet`")
