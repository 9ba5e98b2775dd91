"""Counterfactuals: single changes to an op that might make its edge agree with the oracle.

They come from what the operator declares (alternatives, choices), from constants of the model's
own config and what is usually derived from them, and from edges of the same block (XRAY-19).
`missing` has those that are fitted. Nothing here decides; `confirm` replays every one.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS
from cke.runtime.records import split_id
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
MOST_PARTS = 4
USUAL_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
VERSION = re.compile(r"\.\d+$")
"""What lowering puts behind a variable that a circuit assigns again."""
OFFSETS = ("one less", "one more")


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
    yield from _parts(step, op)
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
            yield attribute_change(step, op, attribute.name, old, new, origin)
        for new in attribute.alternatives:
            if new != old:
                yield attribute_change(step, op, attribute.name, old, new, "declared")


def attribute_change(step: int, op: Op, name: str, old: Any, new: Any, origin: str) -> Candidate:
    """Return the change of one attribute of the op."""
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
    numbers = {k: item for k, item in constants.items() if is_number(item) and "token" not in k}
    if name == "scaling":
        for new in scalings(constants):
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
            for new, derived in derived_from(name, float(value)):
                if old is None or not math.isclose(new, float(old), rel_tol=1e-9):
                    yield new, derived.format(key)
        for axis in ("E", "D"):
            if axis in dims and name in ("scale", "by"):
                for new, derived in derived_from(name, float(dims[axis])):
                    if old is None or not math.isclose(new, float(old), rel_tol=1e-9):
                        yield new, derived.format(axis)


def is_number(value: Any) -> bool:
    """Return whether a value of a config is a positive number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def derived_from(name: str, value: float) -> Iterator[tuple[float, str]]:
    """Yield what an attribute usually is of a constant, with how that is written."""
    yield value, "config {}"
    if name in ("scale", "by"):
        yield value**-0.5, "{} ** -0.5"
        yield value**0.5, "{} ** 0.5"
        yield 1 / value, "1 / {}"


def scalings(constants: Mapping[str, Any]) -> Iterator[Any]:
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
            yield read_instead(graph, step, op, place, site, other_name, "edge of the block")
    for left in range(len(op.inputs)):
        for right in range(left + 1, len(op.inputs)):
            names = op.inputs[left], op.inputs[right]
            if op.operator in ("add", "multiply") or None in names:
                continue
            kinds = [kind for name in names if (kind := types.get(name or "")) is not None]
            if len(kinds) < 2 or names[0] == names[1]:
                continue
            if kinds[0].shape != kinds[1].shape and op.operator != "concat":
                continue
            if kinds[0].dtype in ("i32", "bool"):
                continue
            sites = [graph.origin(Site(step, name or "")) for name in names]
            yield Candidate(
                change=Change(step, op.id, inputs={left: sites[1], right: sites[0]}),
                kind="operand",
                what=f"operands {left} and {right}",
                old=[called(graph, step, name or "") for name in names],
                new=[called(graph, step, name or "") for name in reversed(names)],
                origin="operands exchanged",
            )


def _parts(step: int, op: Op) -> Iterator[Candidate]:
    """Yield the results of a split in every other order, each of the size that it has."""
    names = [edge.name for edge in op.results]
    sizes = op.attributes.get("sizes")
    if op.operator != "split" or sizes is None or len(names) > MOST_PARTS:
        return
    for order in permutations(range(len(names))):
        if order == tuple(range(len(names))):
            continue

        def reordered(
            parts: tuple[Array, ...], order: tuple[int, ...] = order
        ) -> tuple[Array, ...]:
            return tuple(parts[order.index(place)] for place in range(len(parts)))

        yield Candidate(
            change=Change(
                step, op.id, attributes={"sizes": [sizes[at] for at in order]}, after=reordered
            ),
            kind="operand",
            what="the order of the parts",
            old=names,
            new=[names[at] for at in order],
            origin="parts exchanged",
        )


def called(graph: ProgramGraph, step: int, name: str) -> str:
    """Return a value of a step as its circuit shows it: the variable, and its checkpoint if any."""
    point = graph.declared(Site(step, name))
    return name if point is None else f"{VERSION.sub('', name)} @ {split_id(point)[0]}"


def read_instead(
    graph: ProgramGraph, step: int, op: Op, place: int, site: Site, name: str, origin: str
) -> Candidate:
    """Return the change that another edge, of that name in its step, is an operand of the op."""
    return Candidate(
        change=Change(step, op.id, inputs={place: site}),
        kind="operand",
        what=f"operand {place}",
        old=called(graph, step, op.inputs[place] or ""),
        new=called(graph, step, name),
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
