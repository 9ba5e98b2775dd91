"""Every number of a report, from per-position arrays of rows: Laws 8, 9 and 15.

Sums are exactly rounded, so that they depend on the positions alone and not on how many runs
gave them: a merge of shards has the bytes of one run.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CONFIDENCE = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
DEPTHS = 4
TAILS = (0.0001, 0.001, 0.01, 0.05, 0.1)
OUTLIER = 4.0
POSITION_BOUND = 1e-5
MEAN_BOUND = 1e-7


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scored context: its place in the suite, and one value per scored position.

    `trunk` and `trunk_top1` hold one array per worker.
    """

    row: int
    context_id: str
    stratum: str
    cluster: str
    kld: Array
    reverse: Array
    reference_top1: Array
    agreeing: Array
    trunk: tuple[Array, ...]
    trunk_top1: tuple[Array, ...]


def mean(values: Iterable[Any]) -> float:
    """Return the mean of the values, exactly summed; NaN for none."""
    listed = [float(value) for value in values]
    return math.fsum(listed) / len(listed) if listed else math.nan


def quantile(values: Array, q: float) -> float:
    """Return the quantile by linear interpolation, in f64."""
    return float(np.quantile(np.asarray(values, np.float64), q)) if len(values) else math.nan


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the statistics of rows in the order of the suite."""
    kld = joined(rows, "kld")
    agreeing = joined(rows, "agreeing")
    top = joined(rows, "reference_top1")
    return {
        "num_rows": len(rows),
        "num_positions": len(kld),
        "mean_kld": mean(kld),
        "mean_kld_reverse": mean(joined(rows, "reverse")),
        "median_kld": quantile(kld, 0.5),
        "p90_kld": quantile(kld, 0.9),
        "p99_kld": quantile(kld, 0.99),
        "max_kld": float(kld.max()),
        "min_kld": float(kld.min()),
        "nonzero_positions": int(np.count_nonzero(kld)),
        "top1_agreement": mean(agreeing >= 1),
        "topk_agreement": {str(k): mean(agreeing >= k) for k in range(1, 6)},
        "confidence_buckets": confidence_buckets(kld, top),
        "depth_buckets": depth_buckets(rows),
        "tail": tail_concentration(kld),
        "per_context": [context_record(row) for row in rows],
        "strata": strata_table(rows),
    }


def joined(rows: Sequence[Row], name: str) -> Array:
    """Return one array of all rows' positions."""
    return np.concatenate([np.asarray(getattr(row, name)) for row in rows])


def confidence_buckets(kld: Array, top: Array) -> list[dict[str, Any]]:
    """Return the mean by the reference's own certainty; the last bucket holds its upper end."""
    found = []
    for low, high in itertools.pairwise(CONFIDENCE):
        inside = (top >= low) & ((top < high) | ((high == 1.0) & (top >= low)))
        found.append(_bucket(kld[inside], low=low, high=high))
    return found


def depth_buckets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the mean by quarter of the scored depth; together they hold every position."""
    longest = max(len(row.kld) for row in rows)
    edges = [round(longest * part / DEPTHS) for part in range(DEPTHS + 1)]
    found = []
    for low, high in itertools.pairwise(edges):
        values = np.concatenate([row.kld[low:high] for row in rows])
        item = _bucket(values)
        found.append(
            {"depth_lo": low, "depth_hi": high, "n": item["n"], "mean_kld": item["mean_kld"]}
        )
    return found


def _bucket(values: Array, **facts: Any) -> dict[str, Any]:
    return {**facts, "n": len(values), "mean_kld": mean(values) if len(values) else None}


def tail_concentration(kld: Array) -> dict[str, Any]:
    """Return which share of the sum the largest positions carry, and what the mean then is."""
    ordered = np.sort(np.asarray(kld, np.float64))[::-1]
    total = math.fsum(ordered)
    shares: dict[str, float | None] = {}
    for part in TAILS:
        top = ordered[: max(1, round(len(ordered) * part))]
        shares[f"{part:g}"] = math.fsum(top) / total if total > 0 else None
    heavy = shares["0.01"]
    kind = (
        None
        if heavy is None
        else "tail-dominated"
        if heavy >= 0.75
        else ("mixed" if heavy >= 0.4 else "spread")
    )
    return {"share_of_mean": shares, "kind": kind}


def context_record(row: Row) -> dict[str, Any]:
    """Return the record of one scored context."""
    return {
        "row": row.row,
        "context_id": row.context_id,
        "stratum": row.stratum,
        "source_cluster_id": row.cluster,
        "positions": len(row.kld),
        "mean_kld": mean(row.kld),
        "median_kld": quantile(row.kld, 0.5),
        "p99_kld": quantile(row.kld, 0.99),
        "max_kld": float(row.kld.max()),
        "mean_ref_top1_prob": mean(row.reference_top1),
        "top1_agreement": mean(row.agreeing >= 1),
    }


def strata_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one record per stratum that was scored; none is left out."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(row.stratum, []).append(row)
    overall = mean(joined(rows, "reference_top1"))
    return [_stratum(name, named[name], overall) for name in sorted(named)]


def _stratum(name: str, rows: Sequence[Row], overall_top1: float) -> dict[str, Any]:
    means = np.array([mean(row.kld) for row in rows])
    worst = max(rows, key=lambda row: (mean(row.kld), row.context_id))
    total, median = mean(joined(rows, "kld")), quantile(means, 0.5)
    certain = mean(joined(rows, "reference_top1"))
    return {
        "stratum": name,
        "contexts": len(rows),
        "positions": sum(len(row.kld) for row in rows),
        "mean_kld": total,
        "median_context_mean": median,
        "p90_context_mean": quantile(means, 0.9),
        "worst_context": worst.context_id,
        "worst_context_mean": mean(worst.kld),
        "mean_ref_top1_prob": certain,
        "outlier_driven": outlier_driven(total, median),
        "reference_was": "confident" if certain >= overall_top1 else "uncertain",
    }


def outlier_driven(stratum_mean: float, stratum_median: float) -> bool:
    """Whether a stratum's mean is four or more times the median of its contexts' means."""
    return stratum_mean > 0 and stratum_mean >= OUTLIER * stratum_median


def worker_agreement(
    ranks: Sequence[Array], tops: Sequence[Array]
) -> tuple[dict[str, Any], list[str]]:
    """Return how far workers agree on the trunk figure, and where they are beyond the bound.

    Rank 0 gives the figure; `tops` are the first tokens of each rank, whose flips are counted and
    not refused. Comparisons are written so that a NaN is a disagreement.
    """
    first = np.asarray(ranks[0], np.float64)
    problems: list[str] = []
    report: dict[str, Any] = {"workers": len(ranks), "max_abs_delta": 0.0, "mean_abs_delta": 0.0}
    report |= {"mean_rel_delta": 0.0, "top1_flips": top1_flips(tops)}
    if not np.isfinite(first).all():
        problems.append(f"`trunk_kld` of rank 0 is not finite at position {_first_bad(first)}")
    for rank, values in enumerate(ranks[1:], 1):
        other = np.asarray(values, np.float64)
        if len(other) != len(first):
            problems.append(
                f"`trunk_kld`: rank 0 has {len(first)} positions, rank {rank} {len(other)}"
            )
            continue
        delta = np.abs(other - first)
        beyond = ~(delta <= POSITION_BOUND)
        if beyond.any():
            at = int(np.argmax(beyond))
            problems.append(
                f"`trunk_kld` at position {at}: rank 0 has {first[at]!r}, rank {rank} {other[at]!r}"
            )
        ours, theirs = mean(first), mean(other)
        relative = abs(theirs - ours) / abs(ours) if ours else abs(theirs - ours)
        if not relative <= MEAN_BOUND:
            problems.append(f"`trunk_mean_kld`: rank 0 has {ours!r}, rank {rank} {theirs!r}")
        report["max_abs_delta"] = max(report["max_abs_delta"], float(np.max(delta, initial=0.0)))
        report["mean_abs_delta"] = max(report["mean_abs_delta"], mean(delta))
        report["mean_rel_delta"] = max(report["mean_rel_delta"], relative)
    return report, problems


def top1_flips(tops: Sequence[Array]) -> int:
    """Return at how many positions any rank has another first token than rank 0."""
    same_length = [top for top in tops if len(top) == len(tops[0])]
    return int(np.any([top != tops[0] for top in same_length], axis=0).sum())


def _first_bad(values: Array) -> int:
    return int(np.argmax(~np.isfinite(values)))
