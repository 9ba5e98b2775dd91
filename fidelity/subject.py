"""A model as fidelity sees it: hidden states of a context, its head, and who it is.

Non-goal: opening models. `cke.api.fidelity` makes subjects of folders and GGUF files,
`candidates` of the folders that quantisation writes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from cke.fidelity.head import Head, callables, cut_program, execution
from cke.fidelity.settings import Mode, Settings, live_settings, runtime_identity
from cke.runtime.package import Package
from cke.runtime.placement import PlacedWeights
from cke.runtime.state import capacities, initial_state
from cke.runtime.steps import run_steps, step_scalars

Inspection = dict[str, Any]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a model is: the digests were taken from the files as they were read."""

    name: str
    weights_sha256: str
    config_sha256: str
    routing: dict[str, int] | None


class Subject:
    """A model that runs one context at a time, op by op or compiled."""

    def __init__(
        self,
        package: Package,
        weights: PlacedWeights,
        identity: Identity,
        inspection: Inspection,
        mode: Mode = "eager",
    ) -> None:
        self.package = package
        self.weights: Mapping[str, Any] = weights
        self.identity = identity
        self.inspection = inspection
        self.mode: Mode = mode
        self.head = Head(package, weights, mode)
        self._cut = cut_program(package)
        self._callables = callables(package, self._cut.trunk, mode)
        self._scalars = {
            step: {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
            for step, values in step_scalars(self._cut.trunk).items()
        }

    @property
    def settings(self) -> Settings:
        """The determinism settings of this subject's runs."""
        return live_settings(self.mode, self.package.calls.dtype)

    @property
    def runtime(self) -> dict[str, Any]:
        """The identity of what computes."""
        return runtime_identity(self.package)

    def hidden(self, tokens: np.ndarray) -> Array:
        """Return [T, D], what the head reads, of the context i32[T]."""
        width = len(tokens)
        sizes = capacities(self._cut.trunk, width, width)
        inputs = {
            "tokens": jax.device_put(np.asarray(tokens, np.int32)[None]),
            "positions": jax.device_put(np.arange(width, dtype=np.int32)[None]),
        }
        with execution(self.mode):
            out = run_steps(
                self._cut.trunk,
                self._callables,
                dict(self.weights),
                self._scalars,
                initial_state(self._cut.trunk, 1, sizes),
                inputs,
            )
        found: Array = out.outputs[0][0]
        return found

    def with_functions(self, replaced: Mapping[str, Callable[..., Any]]) -> "Subject":
        """Return the same model with kernels of its generated code replaced by name."""
        from cke.fidelity.routing import package_with

        package = package_with(self.package, replaced)
        return Subject(package, dict(self.weights), self.identity, self.inspection, self.mode)
