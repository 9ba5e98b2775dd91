"""Costs of a whole process: time to the first token, cold and warm, and peak memory.

`python -m cke.api.bench.process KIND PATH …` is the child; it prints one JSON line when the first
token is there, and one at its end.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPT = [5, 7, 11, 13, 17, 19, 23, 29]


def measure(kind: str, path: Path, cache: Path, **options: Any) -> dict[str, float]:
    """Run a child with its own cache folder: seconds to the first token, and what it reports."""
    environment = {**os.environ, "CKE_CACHE_DIR": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", __name__, kind, str(path), json.dumps(options)]
    started = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        seconds = time.perf_counter() - started
        rest, errors = child.communicate()
    if child.returncode != 0 or not line:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{errors}")
    return {"seconds": seconds, **json.loads(rest or "{}")}


def _peak_bytes() -> int:
    """Return the most memory that this process held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _first(token: int) -> None:
    print(json.dumps({"token": token}), flush=True)


def _child(kind: str, path: Path, options: dict[str, Any]) -> dict[str, float]:
    if kind == "idle":
        return _idle()
    if kind == "cke":
        return _cke(path, options)
    if kind == "transformers":
        return _transformers(path, options)
    return _llamacpp(path)


def _idle() -> dict[str, float]:
    import jax.numpy as jnp

    _first(int(jnp.ones(3).sum()))
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
    print(json.dumps({**found, "peak": _peak_bytes()}), flush=True)
