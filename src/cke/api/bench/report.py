"""What a benchmark found: medians, ratios with their intervals, and the goals they meet.

A ratio is taken within a round, where both subjects ran one after the other; its interval is that
of the median over resampled rounds. A goal is missed when the whole interval lies beyond it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

SCHEMA = "cke.bench"
VERSION = 1


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` against `other`: above 1 is better, whatever is measured."""

    other: str
    median: float
    low: float
    high: float
    goal: float | None = None
    met: bool | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of every subject; `unit` is `tokens/s`, `s` or `bytes`."""

    name: str
    unit: str
    medians: dict[str, float]
    rounds: dict[str, tuple[float, ...]]
    ratios: tuple[Ratio, ...]


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All rows; `subject` is the one that the ratios are of."""

    schema: str = SCHEMA
    version: int = VERSION
    model: str
    dtype: str
    subject: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


class Goal(msgspec.Struct, frozen=True):
    """The least ratio of the subject to another one."""

    other: str
    ratio: float


def speed_row(
    name: str,
    tokens: int,
    seconds: dict[str, list[float]],
    subject: str,
    goals: Sequence[Goal] = (),
) -> Row:
    """Return tokens per second of every subject, from the seconds of each round."""
    rates = {key: [tokens / value for value in values] for key, values in seconds.items()}
    return row(name, "tokens/s", rates, subject, goals, more_is_better=True)


def row(
    name: str,
    unit: str,
    values: dict[str, list[float]],
    subject: str,
    goals: Sequence[Goal] = (),
    *,
    more_is_better: bool = False,
) -> Row:
    """Return the medians of each subject, and the ratios of one to the others."""
    wanted = {goal.other: goal.ratio for goal in goals}
    mine = values[subject]
    ratios = [
        _ratio(key, mine, theirs, wanted.get(key), more_is_better)
        for key, theirs in values.items()
        if key != subject
    ]
    return Row(
        name=name,
        unit=unit,
        medians={key: float(np.median(items)) for key, items in values.items()},
        rounds={key: tuple(items) for key, items in values.items()},
        ratios=tuple(ratios),
    )


def _ratio(
    other: str, mine: list[float], theirs: list[float], goal: float | None, more: bool
) -> Ratio:
    a, b = np.asarray(mine), np.asarray(theirs)
    each = a / b if more else b / a
    low, high = interval(each)
    return Ratio(
        other=other,
        median=float(np.median(each)),
        low=low,
        high=high,
        goal=goal,
        met=None if goal is None else high >= goal,
    )


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the median, from 2,000 resamplings with a fixed seed."""
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(values), (2000, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)
