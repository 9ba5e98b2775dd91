"""The closed operator vocabulary."""
