"""One verifier per level; each runs after every pass that gives that level."""
