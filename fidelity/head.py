"""Where a program is cut in two: the trunk gives hidden states, the head gives logits of them.

The head is every step after the layers, with its weights; it treats each position alone, so that
stored hidden states of any block give its logits.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from cke.fidelity.digests import arrays_sha256
from cke.fidelity.refusal import refuse
from cke.fidelity.settings import BLOCK, Mode
from cke.runtime.drivers import compiled
from cke.runtime.package import Package
from cke.runtime.placement import PlacedWeights, step_name
from cke.runtime.steps import head_start, run_steps
from cke.schemas.call_ir import Program

PHASE = "prefill"


class Cut(msgspec.Struct, frozen=True):
    """Trunk and head of a program, and the one edge between them."""

    trunk: Program
    head: Program
    edge: str


def cut_program(package: Package) -> Cut:
    """Return trunk and head; CKE874 where the head reads more than one edge of the trunk."""
    program = package.program(PHASE)
    at = head_start(program)
    head, trunk = program.steps[at:], program.steps[:at]
    made = {name for step in head for name in step.results}
    read = {name for step in head for name in step.arguments} - made
    if len(read) != 1 or not trunk:
        refuse("CKE874", f"expected a head that reads one edge of the layers, got {sorted(read)}")
    edge = read.pop()
    return Cut(
        msgspec.structs.replace(program, steps=trunk, outputs=(edge,)),
        msgspec.structs.replace(program, steps=head),
        edge,
    )


class Head:
    """The head of a model, or one that was stored: hidden states to logits in f32."""

    def __init__(self, package: Package, weights: PlacedWeights, mode: Mode) -> None:
        self.cut = cut_program(package)
        names = [step_name(step) for step in self.cut.head.steps]
        self.weights = {name: dict(weights[name]) for name in names}
        self.declared_vocab = package.calls.dims["V"]
        self._mode: Mode = mode
        self._callables = callables(package, self.cut.head, mode)

    def arrays(self) -> dict[str, Array]:
        """Return the weights by `<step>/<parameter>`."""
        return flat_weights(self.weights)

    @property
    def sha256(self) -> str:
        """The digest of the weights: equal heads have equal ones."""
        return arrays_sha256(self.arrays())

    @property
    def state(self) -> dict[str, str]:
        """What the head is, as reports say it."""
        dtypes = sorted({array.dtype.name for array in self.arrays().values()})
        return {"weights_sha256": self.sha256, "dtype": ",".join(dtypes)}

    def logits(self, hidden: Array) -> Array:
        """Return f32[n, V] of hidden states [n, D]; `n` is at most a block."""
        assert hidden.shape[0] <= BLOCK, "logits are made one block at a time"
        with execution(self._mode):
            out = run_steps(
                self.cut.head, self._callables, self.weights, {}, {}, {self.cut.edge: hidden[None]}
            )
            return jnp.asarray(out.outputs[0][0], jnp.float32)


def flat_weights(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """Return placed weights by `<step>/<parameter>`; one of several parts as `…/<part>`."""
    flat: dict[str, Array] = {}
    for step, found in weights.items():
        for name, weight in found.items():
            if isinstance(weight, tuple):
                flat |= {f"{step}/{name}/{i}": part for i, part in enumerate(weight)}
            else:
                flat[f"{step}/{name}"] = weight
    return flat


def execution(mode: Mode) -> AbstractContextManager[Any]:
    """Return the context of a mode: op by op, or compiled."""
    return jax.disable_jit() if mode == "eager" else nullcontext()


def callables(package: Package, program: Program, mode: Mode) -> Mapping[str, Callable[..., Any]]:
    """Return the functions of a program's steps as the mode runs them."""
    names = dict.fromkeys(step.function for step in program.steps)
    raw = {name: package.function(PHASE, name) for name in names}
    if mode == "eager":
        return raw
    return {name: compiled(function, ()) for name, function in raw.items()}


def blocks(length: int) -> list[slice]:
    """Return the blocks of a row of that many positions."""
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]
