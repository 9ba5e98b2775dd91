"""A study of neutrality: programs with every capture against programs without, over many inputs.

The gate of a capture proves one run. This shows beforehand, for one circuit and dtype, that no
input tried tells the two programs apart: both drivers, prompt and single steps, rows of unequal
length, every bit of the outputs and of the state.
"""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array

from cke.runtime.capture import Outputs, bits, conditions
from cke.runtime.drivers import XLA_OPTIONS, Driver
from cke.runtime.edges import Edges
from cke.runtime.package import Package
from cke.runtime.session import Session
from cke.runtime.state import DTYPES
from cke.runtime.trace_body import threads
from cke.schemas.capture_neutrality import SCHEMA, Cell, Study
from cke.schemas.ir import Parameter

ROWS = (12, 9)
"""Tokens of each row of an input: one row is padded."""

STEPS = 2
Drivers = Mapping[str, Driver]
Run = Callable[[Driver, int], dict[str, Outputs]]


def study_neutrality(production: Drivers, evidence: Drivers, inputs: int = 20) -> Study:
    """Return the comparison of each driver's two programs over `inputs` random inputs."""
    assert production.keys() == evidence.keys(), "each driver has both programs"
    package = next(iter(production.values())).package
    assert package.manifest is not None, "a package of a build has a manifest"
    run = _encode if package.phases == ("encode",) else _decode
    compared = {name: _Pair(production[name], evidence[name], run, inputs) for name in production}
    return Study(
        schema=SCHEMA,
        circuit=f"{package.manifest.circuit}@{package.manifest.circuit_version}",
        dtype=package.calls.dtype,
        edges=max(Edges(package).total(phase) for phase in package.phases),
        same_kernels=all(
            conditions(production[name]) == conditions(evidence[name]) for name in production
        ),
        cells=tuple(cell for pair in compared.values() for cell in pair.cells()),
        drivers_agree=_agreeing([pair.controls for pair in compared.values()]),
        settings={
            "xla": dict(XLA_OPTIONS),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "jax": jax.__version__,
            "platform": jax.default_backend(),
            "machine": platform.machine(),
            "threads": threads(),
        },
    )


class _Pair:
    """The runs of one driver: two controls and one captured run of each input."""

    def __init__(self, production: Driver, evidence: Driver, run: Run, inputs: int) -> None:
        self.name = production.name
        self.controls = [run(production, seed) for seed in range(inputs)]
        self.again = [run(production, seed) for seed in range(inputs)]
        self.captured = [run(evidence, seed) for seed in range(inputs)]

    def cells(self) -> Iterator[Cell]:
        for phase in self.controls[0]:
            control, again, captured = (
                [run[phase] for run in runs] for runs in (self.controls, self.again, self.captured)
            )
            pairs = list(zip(control, captured, strict=True))
            yield Cell(
                driver=self.name,
                phase=phase,
                inputs=len(pairs),
                repeatable=sum(a == b for a, b in zip(control, again, strict=True)),
                neutral=sum(a == b for a, b in pairs),
                outputs=len(control[0]),
                differing=next((_names(a, b) for a, b in pairs if a != b), ()),
            )


def _names(left: Outputs, right: Outputs) -> tuple[str, ...]:
    return tuple(name for name in left if left[name] != right.get(name))


def _agreeing(controls: list[list[dict[str, Outputs]]]) -> int:
    """Return on how many inputs the uncaptured programs of all drivers agree."""
    return sum(all(run == runs[0] for run in runs) for runs in zip(*controls, strict=True))


def _decode(driver: Driver, seed: int) -> dict[str, Outputs]:
    """Return the outputs of a prompt, and of the steps after it, with the state of each."""
    rng = np.random.default_rng(seed)
    vocabulary = driver.package.calls.dims["V"]
    prompt = [rng.integers(0, vocabulary, size).tolist() for size in ROWS]
    session = Session(driver, batch=len(ROWS), rows=max(ROWS) + STEPS, uniform=True)
    logits = session.prefill(prompt, logits="all")
    found = {"prefill": {"logits": bits(logits), **_state(session)}}
    steps: Outputs = {}
    for step in range(STEPS):
        logits = session.prefill(rng.integers(0, vocabulary, (len(ROWS), 1)), logits="all")
        steps[f"step.{step}.logits"] = bits(logits)
    return {**found, "decode": {**steps, **_state(session)}}


def _state(session: Session) -> Outputs:
    leaves, _ = jax.tree.flatten_with_path(session.state)
    return {".".join(str(item.key) for item in path): bits(leaf) for path, leaf in leaves}


def _encode(driver: Driver, seed: int) -> dict[str, Outputs]:
    """Return the outputs of a circuit without state."""
    rng = np.random.default_rng(seed)
    package = driver.package
    inputs = {item.name: _drawn(item, package, rng) for item in package.program("encode").inputs}
    outputs = driver.run("encode", {}, inputs).outputs
    return {"encode": {f"output.{index}": bits(item) for index, item in enumerate(outputs)}}


def _drawn(item: Parameter, package: Package, rng: np.random.Generator) -> Array:
    """Return random values of an input: positions in order, the second row shorter."""
    symbols = {"B": len(ROWS), "T": max(ROWS)}
    shape = tuple(symbols[size] if isinstance(size, str) else size for size in item.type.shape)
    places = np.arange(max(ROWS))[None, :]
    values: np.ndarray[Any, Any]
    if item.type.dtype == "bool":
        values = places < np.array(ROWS)[:, None]
    elif item.name == "positions":
        values = np.broadcast_to(places, shape)
    elif item.type.dtype == "i32":
        values = rng.integers(0, package.calls.dims["V" if item.name == "tokens" else "Y"], shape)
    else:
        values = rng.standard_normal(shape)
    placed: Array = jax.device_put(values.astype(DTYPES[item.type.dtype]))
    return placed
