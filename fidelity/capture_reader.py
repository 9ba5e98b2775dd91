"""Reading a capture: refused without a manifest, with a changed file, or without its proof."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from safetensors.numpy import load

from cke.fidelity.capture import HEAD, MANIFEST, PACKAGE, probe_problems, stored_weights
from cke.fidelity.digests import file_sha256
from cke.fidelity.head import Head, blocks
from cke.fidelity.refusal import refuse
from cke.fidelity.settings import Mode
from cke.runtime.package import load_package
from cke.schemas.reading import read_json


class Capture:
    """A finished capture: rows of reference logits, made anew from what was stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.manifest_sha256 = file_sha256(folder / MANIFEST)
        self._head: dict[Mode, Head] = {}

    def verify(self) -> None:
        """Check that every file is the one that the manifest names; CKE873 otherwise."""
        hashes: dict[str, str] = self.manifest["file_hashes"]
        problems = []
        for name, expected in sorted(hashes.items()):
            path = self.folder / name
            if not path.is_file():
                problems.append(f"`{name}` is missing")
            elif file_sha256(path) != expected:
                problems.append(f"`{name}` has other bytes than the manifest says")
        rows = [name for name in hashes if name.startswith("rows/")]
        if len(rows) != self.manifest.get("rows"):
            problems.append(f"expected {self.manifest.get('rows')} rows, got {len(rows)}")
        if problems:
            refuse("CKE873", problems, file=self.folder.name)

    def head(self, mode: Mode) -> Head:
        """Return the reference's head as it was stored."""
        if mode not in self._head:
            package = load_package(self.folder / PACKAGE)
            self._head[mode] = Head(package, stored_weights(self.folder / HEAD), mode)
        return self._head[mode]

    def logits(self, row: int, mode: Mode) -> Iterator[Array]:
        """Yield the reference's logits of a row, one block at a time."""
        stored = load((self.folder / "rows" / f"row-{row:04d}.safetensors").read_bytes())
        if "logits" in stored:
            for part in blocks(len(stored["logits"])):
                yield jax.device_put(np.asarray(stored["logits"][part], np.float32))
            return
        hidden = jax.device_put(stored["hidden"])
        for part in blocks(len(hidden)):
            yield self.head(mode).logits(hidden[part])


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a capture; a folder without one is refused, never inferred."""
    path = folder / MANIFEST
    if not path.is_file():
        refuse("CKE873", f"expected a capture with `{MANIFEST}`, got none", file=folder.name)
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("file_hashes"), dict):
        refuse("CKE873", "expected a capture's manifest with `file_hashes`", file=folder.name)
    problems = probe_problems(
        manifest.get("storage"), manifest.get("replay_probe"), manifest["file_hashes"]
    )
    if problems:
        refuse("CKE874", problems, file=folder.name)
    return manifest
