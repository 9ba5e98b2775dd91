"""What a bundle may hold: the names of its files, and how large they may be."""

import hashlib
from pathlib import Path

EVIDENCE = "evidence"
INDEX = "bundle.json"
MANIFEST = f"{EVIDENCE}/manifest.json"
FILES = (
    "report.json",
    "report.md",
    "drift.svg",
    "fix.patch",
    "run.json",
    "state.json",
    "ranking.json",
    "sensitivity.json",
)
WEIGHTS = (f"{EVIDENCE}/evidence.json", f"{EVIDENCE}/weights.npz")
DOCUMENTS = tuple(f"{EVIDENCE}/{side}/trace.json" for side in ("subject", "oracle"))
TENSORS = tuple(f"{EVIDENCE}/{side}/tensors.safetensors" for side in ("subject", "oracle"))
MAX_WEIGHT = 256 << 20
"""A larger weight stays out of the evidence; judging again then says that it is missing."""
MAX_BUNDLE = 4 << 30
"""Bytes of all files of a bundle; one that claims more is refused before it is unpacked."""
MAX_DOCUMENT = 256 << 20


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
