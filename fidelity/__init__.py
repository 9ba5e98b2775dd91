"""Distribution fidelity: suites, capture, scoring and the laws."""

if __name__ == "fidelity":
    raise ImportError("this is a folder of the cke package: write `import cke.fidelity`")
