"""Captures are neutral: what else a program returns changes no bit of what it computes."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from tests.kernel_registry.chains import CHAINS, Chain, Values, values

INPUTS = 20


def _program(chain: Chain, names: tuple[str, ...]) -> Callable[[Values], Values]:
    def run(given: Values) -> Values:
        edges = chain(given)
        return {name: edges[name] for name in ("output", *names)}

    return jax.jit(run)


def _bits(value: jax.Array) -> bytes:
    return np.asarray(value).tobytes()


RUNS = [
    (1, "float32"),
    (16, "float32"),
    pytest.param(1, "bfloat16", marks=pytest.mark.nightly),
    pytest.param(16, "bfloat16", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("length", "dtype"), RUNS)
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_captures_change_no_bit(name: str, length: int, dtype: str) -> None:
    chain = CHAINS[name]
    edges = tuple(jax.eval_shape(chain, values(0, length, dtype)))
    plain, every = _program(chain, ()), _program(chain, edges)
    for seed in range(INPUTS):
        given = values(seed, length, dtype)
        output, captured = plain(given), every(given)
        assert _bits(output["output"]) == _bits(captured["output"]), f"seed {seed}"


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 16])
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_each_capture_alone_changes_no_bit(name: str, length: int, dtype: str) -> None:
    chain = CHAINS[name]
    edges = tuple(jax.eval_shape(chain, values(0, length, dtype)))
    every = _program(chain, edges)
    alone = {edge: _program(chain, (edge,)) for edge in edges}
    for seed in range(3):
        given = values(seed, length, dtype)
        captured = every(given)
        for edge, program in alone.items():
            for key, value in program(given).items():
                assert _bits(value) == _bits(captured[key]), f"seed {seed}: {edge} alone, {key}"
