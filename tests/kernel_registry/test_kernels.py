"""Every kernel is within the bound of its operator's reference, on ordinary and hostile values."""

import importlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cke.kernel_registry.bounds import Call, bounds, leaves
from cke.kernel_registry.references import REFERENCES
from cke.kernel_registry.resolve import contract_of, registry
from tests.kernel_registry.cases import CASES, Case

DTYPES = {"f32": "float32", "bf16": "bfloat16"}
HOSTILE = (np.nan, np.inf, -np.inf, 1e-40, -1e-38, 1e30, -1e30, 0.0, -0.0)


def _stored(value: Any, dtype: str) -> Any:
    """The operand as a kernel takes it."""
    if isinstance(value, dict):
        return {name: _stored(lane, dtype) for name, lane in value.items()}
    if value is None:
        return None
    return jnp.asarray(value, DTYPES[dtype] if value.dtype == np.float64 else value.dtype)


def _exact(value: Any) -> Any:
    """A stored operand as the reference takes it."""
    if isinstance(value, dict):
        return {name: _exact(lane) for name, lane in value.items()}
    if value is None:
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def _reference(operator: str, operands: list[Any], arguments: dict[str, Any]) -> tuple[Any, ...]:
    results = REFERENCES[operator](*operands, **arguments)
    return results if isinstance(results, tuple) else (results,)


def _run(kernel_id: str, case: Case, dtype: str) -> tuple[list[Any], list[Any], list[Any]]:
    """What the kernel gives, what the reference gives, and the bounds, leaf by leaf."""
    contract = contract_of(kernel_id)
    module = importlib.import_module(f"cke.kernel_registry.kernels.{kernel_id}")
    operands = [_stored(value, dtype) for value in case.operands]
    made = getattr(module, contract.function)(*operands, **case.arguments)
    got = leaves(made if isinstance(made, tuple) else (made,))
    exact, arguments = [_exact(value) for value in operands], dict(case.arguments)
    sizes = arguments.pop("sizes", None) if contract.operator == "linear" else None
    with np.errstate(all="ignore"):
        want = _reference(contract.operator, exact, arguments)
        allowed = bounds(Call(contract.operator, dtype, exact, arguments, want))
    flat = leaves(want)
    if sizes is not None:
        ends = np.cumsum(sizes)[:-1]
        flat, allowed = (np.split(part[0], ends, axis=2) for part in (flat, allowed))
    return [None if value is None else _exact(value) for value in got], flat, allowed


def _check(kernel_id: str, case: Case, dtype: str) -> None:
    got, want, allowed = _run(kernel_id, case, dtype)
    assert len(got) == len(want) == len(allowed)
    for index, (value, exact, bound) in enumerate(zip(got, want, allowed, strict=True)):
        if value is None:
            continue
        assert value.shape == np.shape(exact), f"result {index}"
        with np.errstate(all="ignore"):
            finite = np.isfinite(exact) & np.isfinite(bound)
            apart = np.abs(value - exact)
        close = np.where(finite, apart <= bound, True)
        same = np.where(np.isinf(exact), ~np.isfinite(value), True)
        lost = np.where(np.isnan(exact), np.isnan(value), True)
        assert np.all(close & same & lost), (
            f"result {index}: {np.max(np.where(finite, apart, 0))} apart, "
            f"{np.sum(~(close & same & lost))} of {close.size} outside the bound"
        )


def _check_seed(kernel_id: str, seed: int, dtype: str) -> None:
    """Check one generated call, and the same call with hostile values strewn over it."""
    random = np.random.default_rng(seed)
    case = CASES[kernel_id](random)
    _check(kernel_id, case, dtype)
    for index in case.hostile:
        operand = case.operands[index]
        count = max(1, operand.size // 4) if operand.size else 0
        places = random.integers(0, max(operand.size, 1), count)
        operand.reshape(-1)[places] = random.choice(HOSTILE, count)
    _check(kernel_id, case, dtype)


@pytest.mark.parametrize("kernel_id", sorted(CASES))
@settings(max_examples=2, deadline=None, database=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(sorted(DTYPES)))
def test_kernel_is_within_the_bound_of_its_reference(kernel_id: str, seed: int, dtype: str) -> None:
    _check_seed(kernel_id, seed, dtype)


@pytest.mark.nightly
@pytest.mark.parametrize("kernel_id", sorted(CASES))
@settings(max_examples=40, deadline=None, database=None)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(sorted(DTYPES)))
def test_kernel_is_within_the_bound_of_its_reference_widely(
    kernel_id: str, seed: int, dtype: str
) -> None:
    _check_seed(kernel_id, seed, dtype)


@pytest.mark.parametrize("kernel_id", ["linear", "rms_norm", "rope", "sdpa"])
def test_a_wrong_kernel_is_outside_the_bound(
    kernel_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"cke.kernel_registry.kernels.{kernel_id}")
    right = getattr(module, kernel_id)

    def wrong(*operands: Any, **arguments: Any) -> Any:
        made = right(*operands, **arguments)
        first = made[0] if isinstance(made, tuple) else made
        off = first + jnp.asarray(1e-3, first.dtype)
        return (off, *made[1:]) if isinstance(made, tuple) else off

    case = CASES[kernel_id](np.random.default_rng(0))
    monkeypatch.setattr(module, kernel_id, wrong)
    with pytest.raises(AssertionError, match="outside the bound"):
        _check(kernel_id, case, "f32")


def test_every_kernel_has_a_case() -> None:
    assert sorted(CASES) == [contract.id for contract in registry()]
