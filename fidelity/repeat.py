"""Repeat studies: three captures of one reference over the same tokens, every pair scored."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from cke.fidelity.capture_reader import Capture
from cke.fidelity.fields import mismatches
from cke.fidelity.kld import forward_kld
from cke.fidelity.refusal import refuse
from cke.fidelity.settings import Mode
from cke.fidelity.statistics import mean

CAPTURES = 3


def repeat_study(folders: list[Path]) -> dict[str, Any]:
    """Return the study of three captures; CKE872 where they are not of one measurement.

    Its widest pairwise mean is the floor that a non-zero baseline carries (Law 1).
    """
    if len(folders) != CAPTURES or len({folder.resolve() for folder in folders}) != CAPTURES:
        refuse("CKE872", f"a repeat study expects {CAPTURES} captures, got {len(folders)}")
    taken = [Capture(folder) for folder in folders]
    first = taken[0].manifest
    problems = []
    for folder, other in zip(folders[1:], taken[1:], strict=True):
        found = mismatches(first, other.manifest)
        for name in ("reference_weights_sha256", "contexts", "storage"):
            if other.manifest.get(name) != first.get(name):
                found.append(f"`{name}` differs")
        problems += [f"`{folder.name}`: {text}" for text in found]
    if problems:
        refuse("CKE872", problems)
    for capture in taken:
        capture.verify()
    pairs = []
    for one, two in combinations(range(CAPTURES), 2):
        values = _divergence(taken[one], taken[two])
        pairs.append(
            {
                "pair": [folders[one].name, folders[two].name],
                "capture_manifest_sha256": [taken[i].manifest_sha256 for i in (one, two)],
                "token_sha256": first["token_sha256"],
                "mean_kld": mean(values),
                "max_kld": float(np.max(values)),
                "positions": len(values),
            }
        )
    return {
        "kind": "cke-fidelity-repeat-study",
        "captures": CAPTURES,
        "captured_by": [item.manifest.get("captured_by") for item in taken],
        "pairwise": pairs,
        "floor": max(abs(pair["mean_kld"]) for pair in pairs),
    }


def _divergence(one: Capture, two: Capture) -> np.ndarray:
    mode: Mode = "eager"
    vocabulary = one.manifest["kld_vocab_size"]
    found = [
        forward_kld(first, second, vocabulary, mode)
        for row in range(one.manifest["rows"])
        for first, second in zip(one.logits(row, mode), two.logits(row, mode), strict=True)
    ]
    return np.concatenate(found)
