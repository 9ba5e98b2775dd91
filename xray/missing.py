"""Counterfactuals of what an op may lack: an op after it, or another number, fitted to the oracle.

The last to be tried (XRAY-19): a fit is rounded to a constant of the config, or to few digits, so
that it names a cause and not a residue.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.references import REFERENCES
from cke.schemas.graph_ir import Op
from cke.xray.candidates import (
    Candidate,
    attribute_change,
    called,
    current,
    derived_from,
    is_number,
    scalings,
)
from cke.xray.graph import ProgramGraph
from cke.xray.replay import Change

Array = NDArray[Any]
FITTED = {
    "eps": (1e-13, 1e-1),
    "base": (1e1, 1e9),
    "scale": (1e-4, 1e4),
    "softcap": (1e-1, 1e4),
    "cap": (1e-1, 1e4),
    "by": (1e-4, 1e4),
}


def lost_ropes(
    step: int, op: Op, index: int, positions: Array, width: int, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    """Yield the rotations that may be missing after a projection of heads, by the config."""
    bases = {float(v): k for k, v in _flat(constants) if "theta" in k or "freq_base" in k}
    for base, key in bases.items():
        for pairing in ("split_half", "interleaved"):
            for scaling in scalings(constants):

                def rotate(y: Array, b: float = base, p: str = pairing, s: Any = scaling) -> Array:
                    made: Array = REFERENCES["rope"](
                        y, positions, None, base=b, width=width, pairing=p, scaling=s, heads=1
                    )
                    return made

                candidate = _insertion(step, op, index, "rope", f"{base:g}, {pairing}", rotate)
                yield msgspec.structs.replace(
                    candidate, kind="operand", what="a rope", origin=f"config {key}"
                )


def _flat(constants: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in constants.items():
        if is_number(value):
            yield key, float(value)
        elif isinstance(value, dict):
            yield from _flat(value)


def lost_sums(
    graph: ProgramGraph, step: int, op: Op, index: int, values: Mapping[str, Array]
) -> Iterator[Candidate]:
    """Yield a sum with an edge of the block that may have been left out after this op."""
    for name, value in values.items():
        yield msgspec.structs.replace(
            _insertion(step, op, index, "add", called(graph, step, name), lambda y, v=value: y + v),
            kind="operand",
            what="the sum with an edge",
            origin="edge of the block",
        )


def insertions(
    step: int,
    op: Op,
    made: Array,
    wanted: Array,
    valid: Array | None,
    constants: Mapping[str, Any],
    index: int,
) -> Iterator[Candidate]:
    """Yield an op that may be missing after this one: a factor, a cap, or a bias."""
    left = np.asarray(made, np.float64)
    right = np.asarray(wanted, np.float64)
    seen = np.broadcast_to(True if valid is None else valid, right.shape)
    known = seen & np.isfinite(left) & np.isfinite(right)
    square = float(np.dot(left[known], left[known]))
    if square > 0:
        factor = float(np.dot(left[known], right[known])) / square
        if factor and not math.isclose(factor, 1.0, rel_tol=1e-7):
            nice = _nice(factor, constants)
            yield _insertion(step, op, index, "scale", nice, lambda y: y * nice)
    peak = float(np.abs(right[known]).max(initial=0.0))
    if peak:
        for cap in _caps(left[known], right[known], constants):
            yield _insertion(step, op, index, "softcap", cap, lambda y, c=cap: c * np.tanh(y / c))
    if right.ndim >= 3:
        gap = np.where(known, right - left, np.nan)
        count = np.maximum(known.sum(axis=(0, 1), keepdims=True), 1)
        bias = np.nansum(gap, axis=(0, 1), keepdims=True) / count
        if np.isfinite(bias).all() and float(np.abs(bias).max(initial=0.0)):
            yield _insertion(step, op, index, "bias", "a vector", lambda y, b=bias: y + b)


def _insertion(step: int, op: Op, index: int, name: str, value: Any, function: Any) -> Candidate:
    def after(results: tuple[Array, ...]) -> tuple[Array, ...]:
        return (*results[:index], function(results[index]), *results[index + 1 :])

    return Candidate(
        change=Change(step, op.id, after=after),
        kind="insertion",
        what=name,
        old=None,
        new=value,
        origin="fitted",
    )


def _nice(value: float, constants: Mapping[str, Any]) -> float:
    """Return a constant of the config, or what is derived of one, that a fitted number must be."""
    for item in constants.values():
        if is_number(item):
            for derived, _ in derived_from("scale", float(item)):
                if math.isclose(derived, value, rel_tol=2e-6):
                    return derived
    for digits in range(1, 8):
        rounded = float(f"{value:.{digits}g}")
        if math.isclose(rounded, value, rel_tol=1e-6):
            return rounded
    return value


def _caps(made: Array, wanted: Array, constants: Mapping[str, Any]) -> Iterator[float]:
    for key, item in constants.items():
        if "cap" in key and is_number(item):
            yield float(item)
    order = int(np.argmax(np.abs(made)))
    x, y = float(made[order]), float(wanted[order])
    if not x or abs(y) >= abs(x) or x * y <= 0:
        return
    low, high = abs(y) * (1 + 1e-12), 1e6 * abs(y)
    for _ in range(200):
        middle = math.sqrt(low * high)
        if middle * math.tanh(abs(x) / middle) < abs(y):
            low = middle
        else:
            high = middle
    yield _nice(math.sqrt(low * high), constants)


def coefficients(
    step: int, op: Op, operands: Sequence[Array], wanted: Array, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    """Yield the factors on the operands of a sum that fit the oracle best."""
    if op.operator not in ("add", "subtract"):
        return
    columns = np.stack([np.asarray(item, np.float64).ravel() for item in operands], axis=1)
    target = np.asarray(wanted, np.float64).ravel()
    good = np.isfinite(columns).all(axis=1) & np.isfinite(target)
    solved, *_ = np.linalg.lstsq(columns[good], target[good], rcond=None)
    signs = (1.0, -1.0) if op.operator == "subtract" else (1.0, 1.0)
    factors = [_nice(float(f) * s, constants) for f, s in zip(solved, signs, strict=True)]
    scales = {i: f for i, f in enumerate(factors) if not math.isclose(f, 1.0, rel_tol=1e-6)}
    if scales:
        yield Candidate(
            change=Change(step, op.id, scales=scales),
            kind="insertion",
            what="scale of " + " and ".join(f"operand {i}" for i in scales),
            old=1,
            new=scales if len(scales) > 1 else next(iter(scales.values())),
            origin="fitted",
        )


def fitted(
    graph: ProgramGraph, step: int, op: Op, error: Any, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    """Yield one fitted value for each number of the op; `error` gives a candidate's distance."""
    values = current(graph, step, op)
    for attribute in OPERATORS[op.operator].attributes:
        if attribute.name not in FITTED or attribute.kind != "float":
            continue
        low, high = (math.log(limit) for limit in FITTED[attribute.name])
        old = values.get(attribute.name)

        def distance(x: float, name: str = attribute.name, was: Any = old) -> float:
            found = error(attribute_change(step, op, name, was, math.exp(x), "fitted"))
            return math.inf if found is None else float(found)

        best = _minimum(distance, low, high)
        if best is not None:
            for digits in range(1, 8):
                value = float(f"{math.exp(best):.{digits}g}")
                if distance(math.log(value)) <= 2 * distance(best) + 1e-12:
                    break
            yield attribute_change(step, op, attribute.name, old, _nice(value, constants), "fitted")


def _minimum(distance: Any, low: float, high: float) -> float | None:
    grid = np.linspace(low, high, 33)
    errors = [distance(float(x)) for x in grid]
    at = int(np.argmin(errors))
    if not math.isfinite(errors[at]):
        return None
    left, right = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(48):
        first, second = right - ratio * (right - left), left + ratio * (right - left)
        if distance(first) < distance(second):
            right = second
        else:
            left = first
    return (left + right) / 2
