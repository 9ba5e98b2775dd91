"""Offline pages that render reports and decide nothing."""

if __name__ == "viewer":
    raise ImportError("this is a folder of the cke package: write `import cke.viewer`")
