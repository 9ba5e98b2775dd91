"""Offline pages that render reports and decide nothing."""

if __name__ == "viewer":
    raise ImportError(
        "`viewer` is part of the cke package: write `import cke.viewer`, not `import viewer`"
    )
