"""Costs of a whole process: time to the first token, cold and warm, and peak memory.

`python -m cke.api.bench.process KIND PATH …` is the child; it prints one line when the first token
is there, and one with its report at its end.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cke.errors import CkeError, Diagnostic, Note

PROMPT = [5, 7, 11, 13, 17, 19, 23, 29]
FIRST, REPORT = "first token: ", "report: "


LIMIT = 600.0
"""The most seconds that a child may take; one that takes longer is ended and is an error."""


def measure(kind: str, path: Path, cache: Path, **options: Any) -> dict[str, float]:
    """Run a child with its own cache folder: seconds to the first token, and what it reports."""
    environment = {**os.environ, "CKE_CACHE_DIR": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", __name__, kind, str(path), json.dumps(options)]
    return run(kind, command, environment)


def run(kind: str, command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds until a process gives its first token, and what it reports.

    What it says on stderr goes to a file, so that a talkative process never waits for a reader.
    """
    with tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child:
            timer = threading.Timer(LIMIT, child.kill)
            timer.start()
            try:
                seconds, report = _read(child, started)
            finally:
                timer.cancel()
        if child.returncode != 0 or seconds is None:
            errors.seek(0)
            raise _failed(kind, child.returncode, errors.read())
    return {"seconds": seconds, **report}


def _read(child: "subprocess.Popen[str]", started: float) -> tuple[float | None, dict[str, float]]:
    """Return the seconds until the line of the first token, and the last line, read as JSON.

    Other lines are what a library prints.
    """
    assert child.stdout is not None
    seconds: float | None = None
    report: dict[str, float] = {}
    for line in child.stdout:
        if line.startswith(FIRST) and seconds is None:
            seconds = time.perf_counter() - started
        elif line.startswith(REPORT):
            report = json.loads(line.removeprefix(REPORT))
    return seconds, report


def _failed(kind: str, code: int, said: str) -> CkeError:
    last = said.strip().splitlines()[-1:] or ["nothing"]
    return CkeError(
        Diagnostic(
            code="CKE909",
            message=f"the process `{kind}` expects to give a token, got exit code {code}",
            notes=(
                Note(f"it said last: {last[0]}"),
                Note("leave whole processes out with `--no-processes`", label="help"),
            ),
        )
    )


def _peak_bytes() -> int:
    """Return the most memory that this program held.

    Where the kernel tells it per program: `ru_maxrss` begins at what the parent held at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _first(token: int) -> None:
    print(f"{FIRST}{token}", flush=True)


def _child(kind: str, path: Path, options: dict[str, Any]) -> dict[str, float]:
    if kind == "idle":
        return _idle()
    if kind == "idle_torch":
        return _idle_torch()
    if kind == "cke":
        return _cke(path, options)
    if kind == "transformers":
        return _transformers(path, options)
    return _llamacpp(path)


def _idle() -> dict[str, float]:
    import jax.numpy as jnp

    _first(int(jnp.ones(3).sum()))
    return {}


def _idle_torch() -> dict[str, float]:
    import torch
    import transformers

    assert transformers.AutoModelForCausalLM is not None
    _first(int(torch.ones(3).sum()))
    return {}


def _cke(path: Path, options: dict[str, Any]) -> dict[str, float]:
    import cke

    model = cke.load(path, dtype=options["dtype"], driver=options["driver"])
    session = model.session(rows=len(PROMPT) + options["new_tokens"])
    session.prefill([PROMPT])
    stream = session.stream(options["new_tokens"])
    _first(int(next(stream)[0, 0]))
    for _ in stream:
        pass
    return {"weights": model.weight_bytes, "state": session.state_bytes}


def _transformers(path: Path, options: dict[str, Any]) -> dict[str, float]:
    import torch

    from cke.api.bench.subjects import load_transformers

    model = load_transformers(path, options["dtype"])
    with torch.inference_mode():
        found = model(torch.tensor([PROMPT]), use_cache=True, logits_to_keep=1)
    _first(int(found.logits[0, -1].argmax()))
    return {}


def _llamacpp(path: Path) -> dict[str, float]:
    from cke.api.bench.subjects import LlamaCppSubject

    subject = LlamaCppSubject(path, 512)
    subject.prefill(PROMPT)
    _first(subject._next())
    return {}


if __name__ == "__main__":
    found = _child(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
    print(REPORT + json.dumps({**found, "peak": _peak_bytes()}), flush=True)
