"""Rows of whole processes: time to the first token, cold and warm, and peak memory.

Cold is with an empty cache: the package is built and every program compiled. Warm finds both in
the cache. Memory is that of a warm process, above an idle one of the same framework.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from cke.api.bench.process import measure
from cke.api.bench.report import Goal, Row, row

DRIVERS = {"whole_step": 0.85, "per_layer": 0.6}
"""The most time of a warm start, as a share of a cold one."""
DEFAULT = "cke per_layer"
"""What the driver `auto` starts with."""
MOST_MEMORY = 1.3
"""The most memory above an idle process, as a multiple of weights and state."""
LIMIT = f"{MOST_MEMORY} x weights and state"
NEW_TOKENS = 16

Values = dict[str, list[float]]


class Engines(NamedTuple):
    """What each engine loads; None when it is not compared."""

    cke: Path
    transformers: Path | None
    llamacpp: Path | None


def start_rows(
    engines: Engines,
    dtype: str,
    rounds: int,
    folder: Path,
    progress: Callable[[str], None],
) -> Iterable[Row]:
    """Return the rows of starts and of memory, each engine in every round."""
    cold: Values = {}
    warm: Values = {}
    memory: Values = {}
    for number in range(rounds):
        progress(f"processes, round {number + 1} of {rounds}")
        idle = measure("idle", engines.cke, folder)["peak"]
        for driver in DRIVERS:
            name, cache = f"cke {driver}", folder / f"cache-{driver}-{number}"
            options = {"dtype": dtype, "driver": driver, "new_tokens": NEW_TOKENS}
            first, second = (measure("cke", engines.cke, cache, **options) for _ in range(2))
            _add(cold, name, first["seconds"])
            _add(warm, name, second["seconds"])
            _add(memory, name, second["peak"] - idle)
            if name == DEFAULT:
                _add(memory, LIMIT, MOST_MEMORY * (second["weights"] + second["state"]))
        if engines.transformers is not None:
            found = measure("transformers", engines.transformers, folder, dtype=dtype)
            _add(cold, "transformers", found["seconds"])
            idle_torch = measure("idle_torch", engines.transformers, folder)["peak"]
            _add(memory, "transformers", found["peak"] - idle_torch)
        if engines.llamacpp is not None:
            _add(cold, "llama.cpp", measure("llamacpp", engines.llamacpp, folder)["seconds"])
    goal = Goal("transformers", 1.0)
    yield row("first token, cold", "s", cold, DEFAULT, (goal,))
    for driver, share in DRIVERS.items():
        after, before = f"cke {driver}, warm", f"cke {driver}, cold"
        pair = {after: warm[f"cke {driver}"], before: cold[f"cke {driver}"]}
        yield row(f"first token, warm, {driver}", "s", pair, after, (Goal(before, 1 / share),))
    yield row("peak memory above idle", "bytes", memory, DEFAULT, (Goal(LIMIT, 1.0),))


def _add(values: Values, name: str, value: float) -> None:
    values.setdefault(name, []).append(value)
