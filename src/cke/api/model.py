"""A model that runs: its package built on demand, its weights placed, its sessions.

Goal: `load`, `logits`, `generate`, with the family found from the model's own config. Non-goal:
evidence; X-Ray and traces take a `Model` from here.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cke.api.build import built_package
from cke.api.facts import context_length, end_tokens, run_dtype
from cke.errors import MissingInputError
from cke.runtime.compile_cache import keep_compiled_programs
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.package import Package
from cke.runtime.placement import PlacedWeights, place_weights, placed_bytes
from cke.runtime.sampling import GREEDY, Sampling
from cke.runtime.session import Session, Tokens
from cke.runtime.tokenizer import TextTokenizer, load_tokenizer
from cke.runtime.tokens import check_phases, token_rows
from cke.runtime.weights.files import ModelFiles, open_model
from cke.runtime.weights.load import Weights
from cke.schemas.manifest import Manifest

DEFAULT_DRIVER = "auto"
Progress = Callable[[str], None]


class Model:
    """A package with its weights on the device; sessions of one driver share both.

    `circuit` is what it was loaded with. `seconds` says what loading took, by part.
    """

    def __init__(
        self,
        files: ModelFiles,
        package: Package,
        dtype: str,
        driver: str = DEFAULT_DRIVER,
        circuit: str | Path | None = None,
    ) -> None:
        self.files = files
        self.package = package
        self.dtype = dtype
        self.driver_name = driver
        self.circuit = circuit
        self.seconds: dict[str, float] = {}
        self._drivers: dict[str, Driver] = {}
        self._sessions: dict[tuple[str, int], Session] = {}

    @property
    def manifest(self) -> Manifest:
        """Every decision behind the generated code."""
        assert self.package.manifest is not None, "a package on disk has a manifest"
        return self.package.manifest

    @property
    def name(self) -> str:
        """The name of the model's folder or file."""
        return self.files.name

    @cached_property
    def weights(self) -> dict[str, PlacedWeights]:
        """The weights of each phase, by step and parameter."""
        started = time.perf_counter()
        stored = Weights(self.files, self.manifest.bindings)
        programs = self.package.calls.programs
        placed = place_weights(programs, stored.__getitem__, stored.canonical, stored.fused)
        self.seconds["weights"] = time.perf_counter() - started
        return placed

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in the run dtype, each counted once."""
        return placed_bytes(self.weights)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's own tokenizer; raises MissingInputError when it ships none."""
        return load_tokenizer(self.files)

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text, from the tokenizer, else from the config."""
        try:
            return tuple(sorted(self.tokenizer.eos))
        except MissingInputError:
            return end_tokens(self.files)

    @cached_property
    def context(self) -> int | None:
        """The most positions that the model's config allows, None when it does not say."""
        return context_length(self.files)

    def capturing(self, patterns: tuple[str, ...]) -> Package:
        """Return the package of its own circuit that captures the edges of these names too."""
        return built_package(self.files, self.circuit, self.dtype, patterns)

    def driver(self, name: str | None = None) -> Driver:
        """Return the driver of that name; one is made per model."""
        chosen = name or self.driver_name
        if chosen not in self._drivers:
            self._drivers[chosen] = make_driver(chosen, self.package, self.weights)
        return self._drivers[chosen]

    def session(self, batch: int = 1, *, driver: str | None = None, rows: int = 0) -> Session:
        """Return a new session; `rows` reserves room for that many tokens."""
        return Session(self.driver(driver), batch=batch, rows=rows, context=self.context)

    def logits(self, tokens: Tokens) -> np.ndarray:
        """Return f32[B, T, V] of int32[B, T]: the logits of every position.

        Rows of unequal length are padded on the right; their padding gives no meaning.
        """
        session = self._kept_session(tokens)
        return np.asarray(session.prefill(tokens, logits="all"), np.float32)

    def generate(
        self,
        tokens: Tokens,
        max_new_tokens: int = 32,
        *,
        sampling: Sampling = GREEDY,
        stops: Iterable[int] | None = None,
    ) -> list[list[int]]:
        """Return each row's next tokens, up to and including one of `stops`.

        Greedy unless `sampling` says otherwise. `stops` default to the model's end tokens.
        """
        session = self._kept_session(tokens)
        session.prefill(tokens)
        ends = self.end_tokens if stops is None else tuple(stops)
        return session.generate(max_new_tokens, sampling, ends)

    def encode(self, **inputs: Any) -> tuple[np.ndarray, ...]:
        """Return the outputs of a circuit without state, such as BERT, for its inputs by name."""
        check_phases(self.package.phases, ("encode",))
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in inputs.items()}
        outputs = self.driver().run("encode", {}, arrays).outputs
        return tuple(np.asarray(output) for output in outputs)

    def _kept_session(self, tokens: Tokens) -> Session:
        """Return an empty session for that many rows, kept so that its caches are made once."""
        key = (self.driver_name, token_rows(tokens))
        if key not in self._sessions:
            self._sessions[key] = self.session(key[1])
        self._sessions[key].reset()
        return self._sessions[key]


def load(
    path: str | Path,
    circuit: str | Path | None = None,
    dtype: str = "float32",
    *,
    driver: str = DEFAULT_DRIVER,
    capture: Sequence[str] = (),
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Return the model at `path`, a folder or a GGUF file, ready to run.

    `circuit` is a library name, the path of a `.circuit` file, or None to find the family from
    the model's config. A package that was built before is taken from the user's cache. Pickled
    weights are refused unless `allow_pickle`, and then read with `weights_only=True`.
    """
    started = time.perf_counter()
    short = run_dtype(dtype)
    keep_compiled_programs()
    files = open_model(Path(path), allow_pickle=allow_pickle)
    package = built_package(files, circuit, short, tuple(capture), progress)
    model = Model(files, package, short, driver, circuit)
    model.seconds["build"] = time.perf_counter() - started
    return model


def counts(manifest: Manifest) -> dict[str, int]:
    """Return how much there is of everything, as `cke run` shows it."""
    programs = manifest.calls.programs
    graph = manifest.graph.programs[-1]
    decode = programs[-1]
    kernels = {
        call.kernel_id
        for item in programs
        for function in item.functions
        for call in function.calls
    }
    calls = {function.name: len(function.calls) for function in decode.functions}
    ops = {function.name: len(function.ops) for function in graph.functions}
    checkpoints = [item for item in manifest.checkpoints if item.phase == decode.phase]
    return {
        "phases": len(programs),
        "functions": len(decode.functions),
        "layers": sum(step.layer is not None for step in decode.steps),
        "ops": sum(ops[step.function] for step in decode.steps),
        "calls": sum(calls[step.function] for step in decode.steps),
        "kernels": len(kernels),
        "checkpoints": sum(max(1, len(item.layers)) for item in checkpoints),
        "weights": len(manifest.bindings),
    }


def describe_dims(manifest: Manifest) -> str:
    """Return the sizes of a model in the glossary's letters: `D 576 · H 9 · …`."""
    return " · ".join(f"{name} {size}" for name, size in manifest.calls.dims.items())


def settings(model: Model) -> dict[str, Any]:
    """Return what a run's numbers depend on, for its record."""
    from cke.runtime.drivers import XLA_OPTIONS

    driver = model.driver()
    return {
        "driver": driver.name,
        "bits": driver.bits,
        "dtype": model.dtype,
        "xla_options": dict(XLA_OPTIONS),
        "circuit": f"{model.manifest.circuit}@{model.manifest.circuit_version}",
        "kernels": msgspec.to_builtins(model.manifest.kernels),
    }
