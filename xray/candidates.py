"""Counterfactuals: single changes to an op that might make its edge agree with the oracle.

They come from what the operator declares (alternatives, choices), from constants of the model's
own config and what is usually derived from them, from edges of the same block, and, last, from a
fit of one number (XRAY-19). Nothing here decides; `confirm` replays every one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.references import REFERENCES
from cke.schemas.graph_ir import Op
from cke.xray.graph import FED_POSITIONS, ProgramGraph, Site
from cke.xray.replay import Change

Array = NDArray[Any]
ACTIVATIONS = (
    "silu",
    "gelu_tanh",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "relu_squared",
    "sigmoid",
    "tanh",
)
PAIRWISE = ("add", "subtract", "multiply")
RANK = ("attribute", "operator", "operand", "weight", "position", "insertion")
"""Kinds in the order of preference, when several describe one and the same change."""
SHIFTS: dict[str, Callable[[Array], Array]] = {
    "one less": lambda p: np.maximum(p - 1, 0),
    "one more": lambda p: p + 1,
    "from zero in each forward": lambda p: p - p[:, :1],
    "those of row 0 in every row": lambda p: p[:1],
    "padding on the left counted in": lambda p: p + p.max() - p.max(axis=1, keepdims=True),
}
"""Positions that a side may have fed in place of its schedule's."""
USUAL_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
OFFSETS = ("one less", "one more")
FITTED = {
    "eps": (1e-13, 1e-1),
    "base": (1e1, 1e9),
    "scale": (1e-4, 1e4),
    "softcap": (1e-1, 1e4),
    "cap": (1e-1, 1e4),
    "by": (1e-4, 1e4),
}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A change with its name: what it changes, from which value to which, and where it is from."""

    change: Change
    kind: str
    what: str
    old: Any
    new: Any
    origin: str


def candidates(
    graph: ProgramGraph, step: int, op: Op, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    """Yield every discrete change of one op, likely ones first."""
    yield from _attributes(graph, step, op, constants)
    yield from _operators(step, op)
    yield from _operands(graph, step, op)
    yield from position_changes(graph, step, op)
    yield from _removed(step, op)


def current(graph: ProgramGraph, step: int, op: Op) -> dict[str, Any]:
    """Return the attributes of an op in one step, those that differ by layer included."""
    scalars = graph.steps[step].scalars
    return {**op.attributes, **{name: scalars[key] for name, key in op.scalars.items()}}


def _attributes(
    graph: ProgramGraph, step: int, op: Op, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    values = current(graph, step, op)
    for attribute in OPERATORS[op.operator].attributes:
        if attribute.kind in ("axis", "axes", "list") or attribute.hidden:
            continue
        if attribute.name in ("bias", "weight", "contracted", "groups"):
            continue
        old = values.get(attribute.name)
        for new, origin in _values(attribute.name, attribute.kind, old, graph, constants):
            yield _attribute(step, op, attribute.name, old, new, origin)
        for new in attribute.alternatives:
            if new != old:
                yield _attribute(step, op, attribute.name, old, new, "declared")


def _attribute(step: int, op: Op, name: str, old: Any, new: Any, origin: str) -> Candidate:
    return Candidate(
        change=Change(step, op.id, attributes={name: new}),
        kind="attribute",
        what=name,
        old=old,
        new=new,
        origin=origin,
    )


def _values(
    name: str, kind: str, old: Any, graph: ProgramGraph, constants: Mapping[str, Any]
) -> Iterator[tuple[Any, str]]:
    dims = graph.dims
    numbers = {k: item for k, item in constants.items() if _number(item) and "token" not in k}
    if name == "scaling":
        for new in _scalings(constants):
            if new != old:
                yield new, "config"
    elif name == "window":
        near = [] if old is None else [(old - 1, "neighbour"), (old + 1, "neighbour")]
        near.append((None, "absent"))
        near += [(int(v), f"config {k}") for k, v in numbers.items() if "window" in k and v]
        yield from ((new, origin) for new, origin in near if new != old)
    elif name == "width":
        width = dims.get("E", 0)
        yield from (
            (new, "head width") for new in (width, width // 2, width // 4) if new and new != old
        )
    elif name == "k":
        yield from ((old + step, "neighbour") for step in (1, -1) if old + step > 0)
    elif kind == "float":
        if old is not None and name in ("softcap", "cap"):
            yield None, "absent"
        if name in ("scale", "by") and old != 1:
            yield 1.0, "neutral"
        for key, value in numbers.items():
            for new, derived in _derived(name, float(value)):
                if old is None or not math.isclose(new, float(old), rel_tol=1e-9):
                    yield new, derived.format(key)
        for axis in ("E", "D"):
            if axis in dims and name in ("scale", "by"):
                for new, derived in _derived(name, float(dims[axis])):
                    if old is None or not math.isclose(new, float(old), rel_tol=1e-9):
                        yield new, derived.format(axis)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _derived(name: str, value: float) -> Iterator[tuple[float, str]]:
    yield value, "config {}"
    if name in ("scale", "by"):
        yield value**-0.5, "{} ** -0.5"
        yield value**0.5, "{} ** 0.5"
        yield 1 / value, "1 / {}"


def _scalings(constants: Mapping[str, Any]) -> Iterator[Any]:
    """Yield no scaling, then those of the config, then linear ones by a usual factor."""
    yield None
    for key in ("rope_scaling", "rope_parameters"):
        found = constants.get(key)
        items = [found] if isinstance(found, dict) else []
        if items and not ("rope_type" in items[0] or "type" in items[0]):
            items = [item for item in items[0].values() if isinstance(item, dict)]
        for item in items:
            kind = item.get("rope_type", item.get("type"))
            if kind == "linear":
                yield {"kind": "linear", "factor": item["factor"]}
            if kind == "llama3":
                yield {
                    "kind": "llama3",
                    "factor": item["factor"],
                    "low": item["low_freq_factor"],
                    "high": item["high_freq_factor"],
                    "original": item["original_max_position_embeddings"],
                }
    yield from ({"kind": "linear", "factor": factor} for factor in USUAL_FACTORS)


def _operators(step: int, op: Op) -> Iterator[Candidate]:
    for group in (ACTIVATIONS, PAIRWISE):
        if op.operator in group:
            for name in group:
                if name != op.operator:
                    yield Candidate(
                        change=Change(step, op.id, operator=name),
                        kind="operator",
                        what=op.operator,
                        old=op.operator,
                        new=name,
                        origin="operator table",
                    )


def _operands(graph: ProgramGraph, step: int, op: Op) -> Iterator[Candidate]:
    """Yield every other value of the block that would fit an operand; and operands exchanged."""
    function = graph.function(step)
    before: list[tuple[str, Any]] = [(p.name, p.type) for p in function.parameters]
    for other in function.ops:
        if other.id == op.id:
            break
        before += [(edge.name, edge.type) for edge in other.results]
    types = dict(before)
    aliases = {alias.name: alias.alias_of for alias in function.aliases}
    for place, name in enumerate(op.inputs):
        kind = types.get(name or "") or types.get(aliases.get(name or "") or "")
        if name is None or kind is None or kind.dtype in ("i32", "bool"):
            continue
        own = graph.origin(Site(step, name))
        for other_name, other_kind in before:
            site = graph.origin(Site(step, other_name))
            if site == own or sorted(other_kind.axes) != sorted(kind.axes):
                continue
            if other_kind.shape != kind.shape:
                continue
            yield read_instead(step, op, place, site, other_name, "edge of the block")
    for left in range(len(op.inputs)):
        for right in range(left + 1, len(op.inputs)):
            names = op.inputs[left], op.inputs[right]
            if op.operator in ("add", "multiply") or None in names:
                continue
            kinds = [kind for name in names if (kind := types.get(name or "")) is not None]
            if len(kinds) < 2 or kinds[0].shape != kinds[1].shape or names[0] == names[1]:
                continue
            if kinds[0].dtype in ("i32", "bool"):
                continue
            sites = [graph.origin(Site(step, name or "")) for name in names]
            yield Candidate(
                change=Change(step, op.id, inputs={left: sites[1], right: sites[0]}),
                kind="operand",
                what=f"operands {left} and {right}",
                old=list(names),
                new=list(reversed(names)),
                origin="operands exchanged",
            )


def read_instead(step: int, op: Op, place: int, site: Site, name: str, origin: str) -> Candidate:
    """Return the change that another edge, of that name in its step, is an operand of the op."""
    return Candidate(
        change=Change(step, op.id, inputs={place: site}),
        kind="operand",
        what=f"operand {place}",
        old=op.inputs[place],
        new=name,
        origin=origin,
    )


def reads_positions(graph: ProgramGraph, step: int, op: Op) -> bool:
    """Return whether an op reads the positions that a forward was fed."""
    return any(
        name is not None
        and graph.is_edge(step, name)
        and graph.origin(Site(step, name)) == FED_POSITIONS
        for name in op.inputs
    )


def _of_tokens(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the function, with padding left where it is."""

    def shifted(positions: Array) -> Array:
        return np.where(positions >= 0, function(positions), positions)

    return shifted


def position_changes(graph: ProgramGraph, step: int, op: Op) -> Iterator[Candidate]:
    """Yield other positions that a schedule may have fed by mistake."""
    if not reads_positions(graph, step, op):
        return
    for name, function in SHIFTS.items():
        yield Candidate(
            change=Change(step, op.id, positions=_of_tokens(function)),
            kind="position",
            what="positions",
            old="as fed",
            new=name,
            origin="schedule",
        )


def lost_ropes(
    step: int, op: Op, index: int, positions: Array, width: int, constants: Mapping[str, Any]
) -> Iterator[Candidate]:
    """Yield the rotations that may be missing after a projection of heads, by the config."""
    bases = {float(v): k for k, v in _flat(constants) if "theta" in k or "freq_base" in k}
    for base, key in bases.items():
        for pairing in ("split_half", "interleaved"):
            for scaling in _scalings(constants):

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
        if _number(value):
            yield key, float(value)
        elif isinstance(value, dict):
            yield from _flat(value)


def lost_sums(
    graph: ProgramGraph, step: int, op: Op, index: int, values: Mapping[str, Array]
) -> Iterator[Candidate]:
    """Yield a sum with an edge of the block that may have been left out after this op."""
    for name, value in values.items():
        yield msgspec.structs.replace(
            _insertion(step, op, index, "add", name, lambda y, v=value: y + v),
            kind="operand",
            what="the sum with an edge",
            origin="edge of the block",
        )


def _removed(step: int, op: Op) -> Iterator[Candidate]:
    """Yield the op left out, where its result has the form of its first operand."""
    if len(op.results) != 1 or op.state is not None or op.operator in ("linear", "embedding"):
        return
    for place, name in enumerate(op.inputs[:2]):
        if name is not None:
            yield Candidate(
                change=Change(step, op.id, operator=f"operand_{place}"),
                kind="operator",
                what=op.operator,
                old=op.operator,
                new=f"its operand {place} alone",
                origin="the op left out",
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
        if _number(item):
            for derived, _ in _derived("scale", float(item)):
                if math.isclose(derived, value, rel_tol=2e-6):
                    return derived
    for digits in range(1, 8):
        rounded = float(f"{value:.{digits}g}")
        if math.isclose(rounded, value, rel_tol=1e-6):
            return rounded
    return value


def _caps(made: Array, wanted: Array, constants: Mapping[str, Any]) -> Iterator[float]:
    for key, item in constants.items():
        if "cap" in key and _number(item):
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
            found = error(_attribute(step, op, name, was, math.exp(x), "fitted"))
            return math.inf if found is None else float(found)

        best = _minimum(distance, low, high)
        if best is not None:
            for digits in range(1, 8):
                value = float(f"{math.exp(best):.{digits}g}")
                if distance(math.log(value)) <= 2 * distance(best) + 1e-12:
                    break
            yield _attribute(step, op, attribute.name, old, _nice(value, constants), "fitted")


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
