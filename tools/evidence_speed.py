"""What evidence costs, side by side: summaries of a decode, all tensors of a prefill, both sides.

    python tools/evidence_speed.py MODEL.gguf [--pairs 6] [--steps 16]

Runs with and without captures take turns, and their ratio is that of processor time, which the
load of a shared machine moves least; seconds of the clock stand beside it.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cke.api
from cke.api.build import built_package
from cke.api.model import Model
from cke.runtime.collect import Collector
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.edges import Edges
from cke.runtime.loaded_kernels import call_contracts
from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.runtime.session import Session
from cke.runtime.trace_writer import TraceWriter

PROMPT = 64
CONTEXT = 128


def forwards(
    driver: Driver, request: CaptureRequest, out: Path | None
) -> tuple[float, float, float, float]:
    """Run a request, and return processor and clock seconds of its prefill and of its steps.

    With `out` every edge is taken at the request's level, and written there.
    """
    segments = plan_segments(request)
    writer = None if out is None else TraceWriter(out, len(segments) * 1000)
    collector = None
    if writer is not None:
        edges = Edges(driver.package)
        collector = Collector(edges, request, writer, call_contracts(driver.package))
    watch = None if collector is None else collector.watch
    session = Session(driver, batch=1, rows=CONTEXT, context=CONTEXT, watch=watch)
    parts = []
    for segment in segments:
        start = time.process_time(), time.perf_counter()
        if collector is not None:
            collector.begin(segment)
        tokens = np.asarray(segment.tokens, np.int32)
        positions = np.asarray(segment.positions, np.int32)
        np.asarray(session.prefill(tokens, positions, logits="all"))
        if collector is not None:
            collector.finish()
        if writer is not None:
            os.fsync(writer._file.fileno())
        parts.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    if writer is not None:
        writer.__exit__(None, None, None)
    first, steps = parts[0], parts[1:]
    return (*first, sum(part[0] for part in steps), sum(part[1] for part in steps))


def pairs(
    without: Callable[[], Any], captured: Callable[[], Any], count: int
) -> list[tuple[Any, Any]]:
    """Return what both give, taking turns, after one turn that is not counted."""
    found = [(without(), captured()) for _ in range(count + 1)]
    return found[1:]


def ratio(found: list[tuple[Any, Any]], place: int) -> float:
    """Return the median ratio of one number of the captured runs to that of the others."""
    return statistics.median(ours[place] / plain[place] for plain, ours in found)


def in_process(model: Model, given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the ratios of a decode with summaries and of a prefill with all tensors."""
    plain = model.driver("per_layer")
    capturing = make_driver(
        "per_layer", built_package(model.files, None, model.dtype, ("*",)), model.weights
    )
    generator = np.random.default_rng(0)
    row = tuple(int(t) for t in generator.integers(1, model.manifest.graph.dims["V"], PROMPT))
    forced = tuple((int(t),) for t in generator.integers(1, 1000, given.steps))
    names = iter(range(10**6))

    def run(driver: Driver, captured: bool, **named: Any) -> tuple[float, float, float, float]:
        out = scratch / str(next(names)) if captured else None
        return forwards(driver, CaptureRequest(tokens=(row,), **named), out)

    summary: dict[str, Any] = {"level": "summary", "digests": False, "forced": forced}
    decode = pairs(
        lambda: run(plain, False, forced=forced),
        lambda: run(capturing, True, **summary),
        given.pairs,
    )
    prefill = pairs(lambda: run(plain, False), lambda: run(capturing, True), given.pairs)
    return {
        "summaries over plain, decode": ratio(decode, 2),
        "the same by the clock": ratio(decode, 3),
        "tensors over plain, prefill": ratio(prefill, 0),
        "the same by the clock, with writing": ratio(prefill, 1),
    }


def both_sides(path: Path, scratch: Path) -> dict[str, float]:
    """Return the seconds of tracing both sides and of their comparison, with empty caches."""
    tokens = " ".join(map(str, range(5, 5 + PROMPT)))
    cke_command = [sys.executable, "-m", "cke"]
    mine, theirs = str(scratch / "mine"), str(scratch / "theirs")
    asked = ["--model", str(path), "--tokens", tokens]
    commands = {
        "trace": ["trace", *asked, "--out", mine],
        "oracle": ["oracle", *asked, "--oracle", "pytorch", "--out", theirs],
        "diff": ["trace", "diff", mine, theirs, "--format", "json", "-o", os.devnull],
    }
    environment = {**os.environ, "XDG_CACHE_HOME": str(scratch / "cache")}
    found: dict[str, float] = {}
    for name, words in commands.items():
        start = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*cke_command, *words], env=environment, check=False, capture_output=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[f"{name}, clock"] = time.perf_counter() - start[0]
        before = start[1].ru_utime + start[1].ru_stime
        found[f"{name}, processor"] = used.ru_utime + used.ru_stime - before
    return found


def main() -> None:
    """Measure, and print the numbers as JSON."""
    parser = argparse.ArgumentParser(description="Measure what captures and traces cost.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sides = both_sides(given.model, root)
        (root / "runs").mkdir()
        found = in_process(cke.api.load(given.model), given, root / "runs")
    print(json.dumps({**found, "seconds": sides}, indent=1))


if __name__ == "__main__":
    main()
