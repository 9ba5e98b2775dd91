"""Which cases of the catalogue run: a few for the light gate, pairwise for the nightly."""

import itertools
import random
from collections.abc import Iterable

from cke.validator.entries import Case, Entry

Pair = tuple[int, str | None, int, str | None]
SEED = 20260930
"""The committed seed of the nightly's choice."""


def light_cases(entries: Iterable[Entry]) -> tuple[Case, ...]:
    """Return the first case of every entry of the light gate, one for each of its sizes."""
    return tuple(
        Case(entry, entry.families[0], entry.requests[0], entry.dtypes[0], entry.oracles[0], size)
        for entry in entries
        if entry.light
        for size in entry.variants
    )


def nightly_cases(entries: Iterable[Entry], seed: int = SEED) -> tuple[Case, ...]:
    """Return cases in which every pair of values of two dimensions of an entry meets once."""
    return tuple(case for entry in entries for case in _pairwise(entry, random.Random(seed)))


def _pairwise(entry: Entry, generator: random.Random) -> list[Case]:
    """Choose, again and again, the combination that covers most pairs not yet covered."""
    dimensions: list[tuple[str | None, ...]] = [
        entry.families,
        entry.requests,
        entry.dtypes,
        entry.oracles,
        entry.variants,
    ]
    every = list(itertools.product(*dimensions))
    generator.shuffle(every)
    missing: set[Pair] = set().union(*(_pairs(row) for row in every))
    chosen: list[Case] = []
    while missing:
        row = max(every, key=lambda item: len(_pairs(item) & missing))
        missing -= _pairs(row)
        family, request, dtype, oracle, size = row
        assert None not in (family, request, dtype, oracle), "only a size may be absent"
        chosen.append(Case(entry, str(family), str(request), str(dtype), str(oracle), size))
    return chosen


def _pairs(row: tuple[str | None, ...]) -> set[Pair]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}
