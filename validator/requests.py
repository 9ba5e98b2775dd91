"""What is run: prompts, forwards and decode steps, by name; the cells that faults need to show."""

import random
from typing import Any

VOCABULARY = 96
REQUESTS: dict[str, dict[str, Any]] = {
    "prefill": {"lengths": (12,), "segments": (), "steps": 0},
    "decode": {"lengths": (12,), "segments": (), "steps": 2},
    "chunked": {"lengths": (12,), "segments": (5, 12), "steps": 1},
    "batch": {"lengths": (12, 7), "segments": (), "steps": 2},
    "batch-chunked": {"lengths": (12, 7), "segments": (5, 12), "steps": 1},
    "long": {"lengths": (40,), "segments": (), "steps": 2},
}
"""Rows of that many tokens, the ends of prefill forwards, and decode steps."""


def request_arguments(name: str) -> dict[str, Any]:
    """Return the request as X-Ray's user gives it: tokens, segments and forced tokens."""
    found = REQUESTS[name]
    generator = random.Random(f"cke.validator.{name}")

    def row(count: int) -> list[int]:
        return [generator.randrange(3, VOCABULARY) for _ in range(count)]

    return {
        "tokens": [row(length) for length in found["lengths"]],
        "segments": list(found["segments"]),
        "forced": [row(len(found["lengths"])) for _ in range(found["steps"])],
    }
