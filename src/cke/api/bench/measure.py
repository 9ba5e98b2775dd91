"""The benchmark: every subject in every round, one after the other, so that load hits all alike."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cke.api.bench.report import BenchReport, Goal, Row, speed_row
from cke.api.bench.starts import Engines, start_rows
from cke.api.bench.subjects import (
    CkeSubject,
    LlamaCppSubject,
    Subject,
    TransformersSubject,
    write_f32_gguf,
)
from cke.api.model import Model, settings
from cke.runtime.weights.files import open_model

WHOLE = "cke whole_step"
GOALS = {
    "decode": (Goal("transformers", 1.4), Goal("llama.cpp", 0.8)),
    "prefill 512": (Goal("transformers", 0.8),),
}
"""What the project reaches for with SmolLM2 in f32."""
DECODE_PROMPT = 16


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, how often, and against what."""

    path: Path
    dtype: str = "float32"
    rounds: int = 5
    starts: int | None = None
    prefills: tuple[int, ...] = (128, 512, 1024)
    new_tokens: int = 128
    oracles: tuple[str, ...] = ("transformers", "llamacpp")
    processes: bool = True
    capture: bool = True
    seed: int = 0


def bench(plan: Plan, progress: Callable[[str], None] = lambda text: None) -> BenchReport:
    """Return the measurements of a plan."""
    with tempfile.TemporaryDirectory(prefix="cke-bench-") as folder:
        return _bench(plan, Path(folder), progress)


def _bench(plan: Plan, folder: Path, progress: Callable[[str], None]) -> BenchReport:
    notes: list[str] = []
    subjects = list(_subjects(plan, folder, notes, progress))
    model = next(item.model for item in subjects if isinstance(item, CkeSubject))
    rows = [*_speed_rows(plan, subjects, model, progress)]
    if plan.processes:
        llamacpp = llamacpp_file(plan, folder, []) if "llamacpp" in plan.oracles else None
        transformers = transformers_folder(plan, folder, subjects, notes)
        engines = Engines(plan.path, transformers, llamacpp)
        del subjects
        rows += start_rows(engines, plan.dtype, plan.starts or plan.rounds, folder, progress)
    return BenchReport(
        model=plan.path.name,
        dtype=plan.dtype,
        subject=WHOLE,
        settings={**settings(model), "rounds": plan.rounds},
        environment=_environment(),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _subjects(
    plan: Plan, folder: Path, notes: list[str], progress: Callable[[str], None]
) -> Iterable[Subject]:
    for driver in ("whole_step", "per_layer"):
        progress(f"compiling for the driver {driver}")
        yield _warm(plan, CkeSubject(plan.path, plan.dtype, driver))
    if plan.capture:
        progress("compiling with every checkpoint captured")
        yield _warm(plan, CkeSubject(plan.path, plan.dtype, "per_layer", ("*",), "cke captured"))
    if "transformers" in plan.oracles:
        if find_spec("transformers") and find_spec("torch"):
            progress("loading transformers")
            yield TransformersSubject(plan.path, plan.dtype)
        else:
            notes.append("transformers is not installed: not compared")
    if "llamacpp" in plan.oracles:
        path = llamacpp_file(plan, folder, notes)
        if path is not None:
            progress("loading llama.cpp")
            longest = max(*plan.prefills, DECODE_PROMPT + plan.new_tokens + 1)
            yield LlamaCppSubject(path, longest + 8)


def _warm(plan: Plan, subject: CkeSubject) -> CkeSubject:
    subject.warm_up(list(plan.prefills), DECODE_PROMPT, plan.new_tokens)
    return subject


def llamacpp_file(plan: Plan, folder: Path, notes: list[str]) -> Path | None:
    """Return an f32 GGUF file of the model, written when needed; None, with a note, when none."""
    if find_spec("llama_cpp") is None:
        notes.append("llama-cpp-python is not installed: not compared")
        return None
    target = folder / "model-f32.gguf"
    if target.exists():
        return target
    files = open_model(plan.path)
    if files.format == "gguf":
        return write_f32_gguf(files, target)
    notes.append("llama.cpp is compared for GGUF files only")
    return None


def transformers_folder(
    plan: Plan, folder: Path, subjects: Sequence[Subject], notes: list[str]
) -> Path | None:
    """Return a folder that transformers loads at its best, written when the model is a GGUF file.

    None when transformers is not compared.
    """
    subject = next((item for item in subjects if isinstance(item, TransformersSubject)), None)
    if subject is None or plan.path.is_dir():
        return plan.path if subject else None
    target = folder / "transformers"
    subject.model.save_pretrained(target)
    notes.append("starts: transformers loads safetensors in the run dtype, cke the GGUF file")
    return target


def _speed_rows(
    plan: Plan, subjects: Sequence[Subject], model: Model, progress: Callable[[str], None]
) -> Iterable[Row]:
    size = model.manifest.calls.dims["V"]
    generator = np.random.default_rng(plan.seed)
    tokens = generator.integers(0, size, max(*plan.prefills, DECODE_PROMPT)).tolist()
    for length in plan.prefills:
        progress(f"prefill {length}")
        prompt = tokens[:length]
        seconds = _interleaved(plan.rounds, subjects, methodcaller("prefill", prompt))
        name = f"prefill {length}"
        yield speed_row(name, length, seconds, WHOLE, GOALS.get(name, ()))
    progress(f"decode {plan.new_tokens}")
    prompt = tokens[:DECODE_PROMPT]
    seconds = _interleaved(plan.rounds, subjects, lambda item: item.decode(prompt, plan.new_tokens))
    yield speed_row(f"decode {plan.new_tokens}", plan.new_tokens, seconds, WHOLE, GOALS["decode"])


def _interleaved(
    rounds: int, subjects: Sequence[Subject], run: Callable[[Any], float]
) -> dict[str, list[float]]:
    """Return the seconds of every subject in every round; a first round is thrown away."""
    seconds: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(rounds + 1):
        for subject in subjects:
            spent = run(subject)
            if number:
                seconds[subject.name].append(spent)
    return seconds


def _environment() -> dict[str, Any]:
    packages = ("jax", "jaxlib", "numpy", "torch", "transformers", "llama-cpp-python")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
