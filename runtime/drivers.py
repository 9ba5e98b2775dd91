"""Three ways to run a package: per layer, as one whole step, or op by op.

`per_layer` compiles one function per layer kind and calls it in a loop; `whole_step` compiles all
that the package's `step` does, as one program. Both give the same bits. `eager` compiles no
program: each operation rounds on its own and its bits differ; it is what the fidelity laws call
authoritative. `auto` starts as soon as `per_layer` does, and decodes in the loop of `whole_step`
where its compilation pays.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.package import Package
from cke.runtime.placement import PlacedWeights
from cke.runtime.sampling import Sampling, choose
from cke.runtime.state import SessionState
from cke.runtime.steps import StepOutput, Watch, run_steps, step_scalars

XLA_OPTIONS: dict[str, bool] = {"xla_allow_excess_precision": False}
"""Options of every compilation; part of a run's record. Each rounding of the circuit is kept."""

CHUNK = 64
"""The most tokens that one call of the on-device loop gives."""

LONG = 512
"""New tokens from which `auto` compiles the loop, which saves an eighth of a step."""


class Driver(Protocol):
    """Runs one step of a phase; `rows` keeps one position per row for the head."""

    name: str
    bits: str
    package: Package
    weights: Mapping[str, PlacedWeights]
    loops_from: int | None

    def run(
        self,
        phase: str,
        state: SessionState,
        inputs: Mapping[str, Array],
        rows: Array | None = None,
        watch: Watch | None = None,
    ) -> StepOutput:
        """Return outputs, the new state and captured edges; `state` is given up.

        With `watch`, captures are given to it, as early as the driver has them.
        """
        ...


class PerLayer:
    """One compiled function per layer kind and bucket, called once per step."""

    name = "per_layer"
    bits = "equal to `whole_step`"
    loops_from: int | None = None

    def __init__(self, package: Package, weights: Mapping[str, PlacedWeights]) -> None:
        self.package = package
        self.weights = weights
        self._callables = {phase: self._compiled(phase) for phase in package.phases}
        self._scalars = {phase: _placed_scalars(package, phase) for phase in package.phases}

    def _compiled(self, phase: str) -> dict[str, Callable[..., Any]]:
        return {
            function.name: compiled(
                self.package.function(phase, function.name), (1,) if function.state else ()
            )
            for function in self.package.program(phase).functions
        }

    def run(
        self,
        phase: str,
        state: SessionState,
        inputs: Mapping[str, Array],
        rows: Array | None = None,
        watch: Watch | None = None,
    ) -> StepOutput:
        """Return outputs, the new state and captured edges; `state` is given up."""
        return run_steps(
            self.package.program(phase),
            self._callables[phase],
            self.weights[phase],
            self._scalars[phase],
            state,
            inputs,
            rows,
            watch,
        )


class WholeStep:
    """The whole step as one program, and a decode loop that stays on the device."""

    name = "whole_step"
    bits = "equal to `per_layer`"
    loops_from: int | None = 1

    def __init__(self, package: Package, weights: Mapping[str, PlacedWeights]) -> None:
        self.package = package
        self.weights = weights
        self._steps = {
            phase: compiled(partial(whole_step, package, phase), (1,)) for phase in package.phases
        }
        self._loops: dict[tuple[Sampling, tuple[int, ...]], Callable[..., Any]] = {}

    def run(
        self,
        phase: str,
        state: SessionState,
        inputs: Mapping[str, Array],
        rows: Array | None = None,
        watch: Watch | None = None,
    ) -> StepOutput:
        """Return outputs, the new state and captured edges; `state` is given up."""
        found = StepOutput(*self._steps[phase](self.weights[phase], state, dict(inputs), rows))
        if watch is None:
            return found
        watch(found.captured)
        return found._replace(captured={})

    def loop(self, sampling: Sampling, stops: tuple[int, ...]) -> Callable[..., Any]:
        """Return the compiled decode loop for these settings: see `decode_loop`."""
        key = (sampling.form, stops)
        if key not in self._loops:
            function = partial(decode_loop, self.package, sampling.form, stops)
            self._loops[key] = compiled(function, (1,))
        return partial(self._loops[key], self.weights["decode"])


class Eager:
    """Op by op, without a compiled program; its bits differ from those of the other drivers."""

    name = "eager"
    bits = "its own: every operation rounds alone"
    loops_from: int | None = None

    def __init__(self, package: Package, weights: Mapping[str, PlacedWeights]) -> None:
        self.package = package
        self.weights = weights

    def run(
        self,
        phase: str,
        state: SessionState,
        inputs: Mapping[str, Array],
        rows: Array | None = None,
        watch: Watch | None = None,
    ) -> StepOutput:
        """Return outputs, the new state and captured edges."""
        program = self.package.program(phase)
        callables = {
            function.name: self.package.function(phase, function.name)
            for function in program.functions
        }
        scalars = _placed_scalars(self.package, phase)
        with jax.disable_jit():
            return run_steps(
                program, callables, self.weights[phase], scalars, state, inputs, rows, watch
            )


class Auto(PerLayer):
    """Per layer, and the on-device loop of `whole_step` for long generations and once warm."""

    name = "auto"
    bits = "equal to `per_layer` and `whole_step`"
    loops_from: int | None = LONG

    def __init__(self, package: Package, weights: Mapping[str, PlacedWeights]) -> None:
        super().__init__(package, weights)
        self._whole = WholeStep(package, weights)

    def loop(self, sampling: Sampling, stops: tuple[int, ...]) -> Callable[..., Any]:
        """Return the compiled decode loop for these settings: see `decode_loop`."""
        return self._whole.loop(sampling, stops)


Looping = WholeStep | Auto
DRIVERS: dict[str, type[PerLayer] | type[WholeStep] | type[Eager]] = {
    driver.name: driver for driver in (Auto, PerLayer, WholeStep, Eager)
}


def make_driver(name: str, package: Package, weights: Mapping[str, PlacedWeights]) -> Driver:
    """Return the driver of that name over the package and its placed weights."""
    if name not in DRIVERS:
        expected = " | ".join(DRIVERS)
        raise CkeError(
            Diagnostic(
                code="CKE607",
                message=f"`driver` expects {expected}, got `{name}`",
                notes=(
                    Note(
                        "`auto` starts soonest, `whole_step` is the fast one once it is warm",
                        None,
                        "help",
                    ),
                ),
            )
        )
    return DRIVERS[name](package, weights)


def compiled(function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
    """Return the function compiled with the options of every run; it takes over `donated`."""
    return jax.jit(function, donate_argnums=donated, compiler_options=dict(XLA_OPTIONS))


def whole_step(
    package: Package,
    phase: str,
    weights: PlacedWeights,
    state: SessionState,
    inputs: Mapping[str, Array],
    rows: Array | None,
) -> StepOutput:
    """Run what the package's `step` runs; with `rows`, the head on one position per row.

    Each function is traced and lowered once, however many layers call it: XLA inlines the calls.
    """
    program = package.program(phase)
    callables = {
        function.name: jax.jit(package.function(phase, function.name))
        for function in program.functions
    }
    width = next(iter(inputs.values())).shape[1]
    kept = rows if width > 1 else None
    scalars = _placed_scalars(package, phase)
    return run_steps(program, callables, weights, scalars, state, inputs, kept)


def decode_loop(
    package: Package,
    sampling: Sampling,
    stops: tuple[int, ...],
    weights: PlacedWeights,
    state: SessionState,
    row: Mapping[str, Array],
    seed: Array,
    limit: Array,
) -> tuple[SessionState, dict[str, Array], Array]:
    """Decode up to `limit` tokens, at most CHUNK: state, rows, and tokens i32[B, CHUNK].

    `row` holds per row `token`, `position` (-1 once it is done) and `number`, its tokens so far.
    A row that is done gives -1 and leaves its state alone.
    """
    batch = row["token"].shape[0]
    tokens = jnp.full((batch, CHUNK), -1, jnp.int32)

    def body(carry: Any) -> Any:
        index, state, row, tokens = carry
        inputs = {"tokens": row["token"][:, None], "positions": row["position"][:, None]}
        outputs, state, _ = whole_step(package, "decode", weights, state, inputs, None)
        row = advance(outputs[0][:, -1], row, seed, sampling, stops)
        column = jnp.where(row["given"], row["token"], -1)
        return index + 1, state, row, tokens.at[:, index].set(column)

    def more(carry: Any) -> Array:
        return jnp.logical_and(carry[0] < limit, jnp.any(carry[2]["position"] >= 0))

    start = (jnp.zeros((), jnp.int32), state, dict(row), tokens)
    _, state, row, tokens = jax.lax.while_loop(more, body, start)
    return state, dict(row), tokens


def advance(
    logits: Array, row: Mapping[str, Array], seed: Array, sampling: Sampling, stops: tuple[int, ...]
) -> dict[str, Array]:
    """Choose each row's next token from logits [B, V]; a row that gives a stop token is done."""
    live = row["position"] >= 0
    token = jnp.where(live, choose(logits, row["number"], seed, sampling), 0)
    stopped = jnp.isin(token, jnp.array(stops, jnp.int32)) if stops else jnp.zeros_like(live)
    return {
        "token": token,
        "position": jnp.where(live & ~stopped, row["position"] + 1, -1),
        "number": row["number"] + live.astype(jnp.int32),
        "given": live,
    }


@cache
def advance_once(sampling: Sampling, stops: tuple[int, ...]) -> Callable[..., Any]:
    """Return `advance`, compiled for these settings."""
    return jax.jit(partial(advance, sampling=sampling, stops=stops))


def _placed_scalars(package: Package, phase: str) -> dict[str, dict[str, Array]]:
    return {
        step: {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
        for step, values in step_scalars(package.program(phase)).items()
    }
