"""Prompts that leave no choice to rounding, for runs in bfloat16 that nothing is wrong with.

A random model often likes two tokens, or two experts, so much alike that bfloat16 decides between
them; two right implementations then differ in a first token, which is a divergence and no control.
So each token of such a prompt is drawn until the oracle alone, in float32, prefers what it chooses
by more than its own run in bfloat16 drifts. The subject has no part in it.
"""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.oracles.base import Oracle
from cke.oracles.open import open_oracle
from cke.runtime.schedule import CaptureRequest
from cke.schemas.trace import Record
from cke.validator.requests import REQUESTS, VOCABULARY

CHOICES = frozenset({"logits", "mlp.router_logits", "mlp.router_ids"})
"""Checkpoints whose order of values is a choice, and the choice itself."""

APART = 4 * 2**0.5
"""How many times their drift two values must be apart: four deviations of a difference."""

AT_ONCE, TRIES = 8, 16
Values = dict[str, NDArray[np.float64]]


class _Last:
    """Keeps the last position of every choice of every row."""

    def __init__(self, rows: int) -> None:
        self.found: list[Values] = [{} for _ in range(rows)]

    def add(self, record: Record, array: NDArray[Any]) -> None:
        """Keep one capture; its values are [B, T, ...]."""
        rows = array.astype(np.float64).reshape(len(self.found), -1, array.shape[-1])
        for values, kept in zip(rows, self.found, strict=True):
            kept[record.checkpoint_id] = values[-1]


def decided_request(model: Path, name: str) -> dict[str, Any]:
    """Return tokens and forced tokens of a request, decided for the oracle of a model folder.

    A row that cannot be decided is a RuntimeError.
    """
    chosen = json.loads((model / "config.json").read_bytes()).get("num_experts_per_tok", 1)
    exact, rounded = (open_oracle("pytorch", model, dtype) for dtype in ("f32", "bf16"))
    asked = REQUESTS[name]
    generator = random.Random(f"cke.validator.decided.{name}")
    rows = []
    for length in asked["lengths"]:
        row: tuple[int, ...] = ()
        while len(row) < length + asked["steps"]:
            row = _longer(exact, rounded, row, chosen, generator)
        rows.append(row)
    lengths = asked["lengths"]
    return {
        "tokens": [list(row[:size]) for row, size in zip(rows, lengths, strict=True)],
        "forced": [
            [row[size + step] for row, size in zip(rows, lengths, strict=True)]
            for step in range(asked["steps"])
        ],
    }


def _longer(
    exact: Oracle, rounded: Oracle, row: tuple[int, ...], chosen: int, generator: random.Random
) -> tuple[int, ...]:
    for _ in range(TRIES):
        drawn = generator.sample(range(3, VOCABULARY), AT_ONCE)
        rows = tuple((*row, token) for token in drawn)
        sides = zip(rows, _choices(exact, rows), _choices(rounded, rows), strict=True)
        for longer, left, right in sides:
            if is_decided(left, right, chosen):
                return longer
    raise RuntimeError(f"no token of {AT_ONCE * TRIES} decides position {len(row)}")


def is_decided(exact: Values, rounded: Values, chosen: int) -> bool:
    """Return whether every first token and every expert is chosen by more than rounding moves."""
    for name, values in exact.items():
        if name.endswith("router_ids"):
            if not np.array_equal(values, rounded[name]):
                return False
            continue
        drift = float(np.sqrt(np.mean((values - rounded[name]) ** 2)))
        ordered = np.sort(values)[::-1][: 2 if name == "logits" else chosen + 1]
        if (-np.diff(ordered)).min() <= APART * drift:
            return False
    return True


def _choices(oracle: Oracle, rows: tuple[tuple[int, ...], ...]) -> list[Values]:
    sink = _Last(len(rows))
    oracle.capture(CaptureRequest(tokens=rows, edges=CHOICES), sink)
    return sink.found


def write_request(model: Path, name: str, out: Path) -> None:
    """Write a decided request as JSON; one thread, since operators of tiny models take no more."""
    import torch

    torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.encode(decided_request(model, name)))
