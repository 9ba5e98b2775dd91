"""Intervals by resampling source clusters: contexts of one document are not independent."""

from collections.abc import Sequence
from typing import Any

import numpy as np

DRAWS = 2000
SEED = 0
LEVEL = 0.95


def _by_cluster(records: Sequence[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Sum of divergence and count of positions of each cluster."""
    found: dict[str, tuple[float, int]] = {}
    for item in records:
        total, count = found.get(item["source_cluster_id"], (0.0, 0))
        found[item["source_cluster_id"]] = (
            total + item["mean_kld"] * item["positions"],
            count + item["positions"],
        )
    return found


def interval(records: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the interval of the mean of a report's per-context records."""
    found = _by_cluster(records)
    return _resampled([found[name] for name in sorted(found)])


def paired_interval(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> tuple[float, float]:
    """Return the interval of the difference of means, both sides drawn with the same clusters."""
    ours, theirs = _by_cluster(first), _by_cluster(second)
    assert ours.keys() == theirs.keys(), "paired results have the same clusters"
    return _resampled([(ours[name][0] - theirs[name][0], ours[name][1]) for name in sorted(ours)])


def resolved(bounds: tuple[float, float]) -> bool:
    """Whether an interval of a difference leaves zero out."""
    return bounds[0] > 0 or bounds[1] < 0


def _resampled(parts: list[tuple[float, int]]) -> tuple[float, float]:
    sums = np.array([total for total, _ in parts])
    counts = np.array([count for _, count in parts], np.float64)
    draws = np.random.default_rng(SEED).integers(0, len(parts), (DRAWS, len(parts)))
    means = sums[draws].sum(1) / counts[draws].sum(1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
