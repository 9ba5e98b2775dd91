"""Replay: run the ops behind an edge on given inputs, by kernel or by float64 reference (XRAY-18).

Inputs are what one trace captured. Where a value between them was not captured, the ops that make
it run too, so that a replay always starts from evidence.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS, kernel_arguments
from cke.kernel_registry.references import REFERENCES
from cke.runtime.weights.load import DTYPES as FLOATS
from cke.schemas.call_ir import Call
from cke.schemas.graph_ir import Op
from cke.schemas.trace import Segment
from cke.xray.graph import FED_POSITIONS, ProgramGraph, Site
from cke.xray.values import TraceValues, key_positions

Array = NDArray[Any]
DTYPES: dict[str, Any] = {**FLOATS, "i32": np.int32, "bool": np.bool_}


class NotReplayable(Exception):
    """An input of the op is neither captured nor computable from what is."""


REPLAY_ERRORS = (
    NotReplayable,
    ArithmeticError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AssertionError,
)
"""What a replay with a change may raise: such a change explains nothing."""


class SubjectWeights(Protocol):
    """The subject's bound weights in their run dtype, and as its kernels take them."""

    def weight(self, semantic: str) -> Array:
        """Return a semantic weight."""
        ...

    def placed(self, phase: str, step: str) -> Mapping[str, Any]:
        """Return the weights of a step as generated code takes them."""
        ...


class Change(msgspec.Struct, frozen=True):
    """A single change to one op of a replay; what is None or empty stays as it is.

    `after` maps the op's results to what they become; `inputs` replaces operands by place, and
    `before` maps one to what reaches the op.
    """

    step: int
    op: str
    attributes: dict[str, Any] = {}
    operator: str | None = None
    inputs: dict[int, Site] = {}
    before: dict[int, Callable[[Array], Array]] = {}
    scales: dict[int, float] = {}
    weights: dict[int, Any] = {}
    positions: Callable[[Array], Array] | None = None
    after: Callable[[tuple[Array, ...]], tuple[Array, ...]] | None = None


class Replayer(ABC):
    """Replays over one segment of one trace, with one way to run an op."""

    def __init__(
        self,
        graph: ProgramGraph,
        values: TraceValues,
        weights: SubjectWeights,
        segment: int,
        change: Change | None = None,
        given: Mapping[Site, Array] | None = None,
    ) -> None:
        self.graph, self.values, self.weights = graph, values, weights
        self.segment = segment
        self.change = change
        self.given = dict(given or {})
        self.ops: dict[tuple[int, str], Op] = {}
        self.read: dict[Site, None] = {}
        self._made: dict[Site, Array] = {}

    @property
    def schedule(self) -> tuple[Segment, ...]:
        """The forwards of the trace that inputs come from."""
        return self.values.segments

    def result(self, site: Site) -> Array:
        """Return the value of an edge, made by its op from captured inputs."""
        site = self.graph.origin(site)
        if site not in self._made:
            self._made |= self._make(site)
        return self._made[site]

    @property
    def made(self) -> dict[Site, Array]:
        """Every value that the replay made on the way."""
        return dict(self._made)

    def _value(self, site: Site) -> Array:
        site = self.graph.origin(site)
        if site in self._made:
            return self._made[site]
        if site in self.given:
            return self.given[site]
        captured = self.values.value(self.graph, self.segment, site)
        if captured is None:
            if site.step < 0:
                raise NotReplayable(f"the input `{site.edge}` of the program")
            return self.result(site)
        self.read[site] = None
        return captured

    @abstractmethod
    def _make(self, site: Site) -> dict[Site, Array]:
        """Run the op or call that makes a value, and return all its results."""

    def _slot(self, step: int, op: Op, state: str) -> dict[str, Array]:
        """Return the state before the segment, from what the trace shows of the one before.

        A trace shows caches alone; of another state only the empty one at the start is known.
        """
        cached = OPERATORS[op.operator].state == "cache"
        if not cached and self.segment:
            raise NotReplayable(f"the state of `{op.id}`, which no trace shows")
        slot = next(item for item in self.graph.function(step).state if item.name == state)
        batch = len(self.schedule[self.segment].tokens)
        capacity = max(self.schedule[self.segment].cache_token_count)
        made: dict[str, Array] = {}
        for lane in slot.lanes:
            shape = [batch if n == "B" else capacity if n == "S" else n for n in lane.type.shape]
            made[lane.name] = np.zeros([int(n) for n in shape], DTYPES[lane.type.dtype])
        if not cached:
            return made
        for whole, edge in zip(made.values(), op.results, strict=False):
            before = self._lane(Site(step, edge.name))
            if before is not None:
                kept = before[:, :capacity]
                whole[:, : kept.shape[1]] = kept.astype(whole.dtype)
        positions = np.full((batch, capacity), -1, np.int32)
        if self.segment:
            known = key_positions(self.schedule, self.segment - 1)[:, :capacity]
            positions[:, : known.shape[1]] = known
        counts = np.asarray(self.schedule[self.segment].append_index, np.int32)
        return {**made, "positions": positions, "count": counts}

    def _lane(self, site: Site) -> Array | None:
        if self.segment == 0:
            return None
        found = self.values.value(self.graph, self.segment - 1, site)
        if found is None:
            raise NotReplayable(f"the cached rows of `{site.edge}`")
        return found


class ReferenceReplayer(Replayer):
    """Runs the operators' float64 definitions; may carry one change."""

    def _make(self, site: Site) -> dict[Site, Array]:
        op = self.graph.producer(site)
        assert op is not None, "an input of the program is never made"
        step = self.graph.steps[site.step]
        self.ops[site.step, op.id] = op
        change = self._change(site.step, op)
        operands = [self._operand(site.step, op, place) for place in range(len(op.inputs))]
        weights = [
            change.weights[place]
            if change is not None and place in change.weights
            else None
            if name is None
            else _exact(self.weights.weight(step.weights[name]))
            for place, name in enumerate(op.weights)
        ]
        operator = OPERATORS[op.operator]
        scalars = {name: step.scalars[scalar] for name, scalar in op.scalars.items()}
        attributes = {**op.attributes, **scalars}
        name = op.operator
        if change is not None:
            attributes |= change.attributes
            name = change.operator or name
        constants = kernel_arguments(operator, attributes, op.layout)
        slot = () if op.state is None else (self._slot(site.step, op, op.state),)
        with np.errstate(all="ignore"):
            made = _definition(name)(*slot, *operands, *weights, **constants)
        results = made if isinstance(made, tuple) else (made,)
        results = results[1:] if op.state is not None else results
        if change is not None and change.after is not None:
            results = change.after(results)
        return {
            Site(site.step, edge.name): value
            for edge, value in zip(op.results, results, strict=False)
        }

    def _operand(self, step: int, op: Op, place: int) -> Array | None:
        name = op.inputs[place]
        change = self._change(step, op)
        if change is not None and place in change.inputs:
            return _exact(self._value(change.inputs[place]))
        if name is None:
            return None
        if name not in self._edges(step):
            return _exact(self.weights.weight(self.graph.steps[step].weights[name]))
        value = _exact(self._value(Site(step, name)))
        if change is None:
            return value
        if place in change.before:
            value = change.before[place](value)
        if place in change.scales:
            value = value * change.scales[place]
        fed = self.graph.origin(Site(step, name)) == FED_POSITIONS
        return change.positions(value) if fed and change.positions is not None else value

    def _edges(self, step: int) -> set[str]:
        function = self.graph.function(step)
        names = {parameter.name for parameter in function.parameters}
        names |= {edge.name for op in function.ops for edge in op.results}
        return names | {alias.name for alias in function.aliases}

    def _change(self, step: int, op: Op) -> Change | None:
        change = self.change
        return change if change is not None and (change.step, change.op) == (step, op.id) else None


class KernelReplayer(Replayer):
    """Runs the resolved kernels, one call at a time, on inputs in the subject's storage dtype."""

    def _make(self, site: Site) -> dict[Site, Array]:
        call = self.graph.call(site)
        step = self.graph.steps[site.step]
        for member in call.members:
            op = next(o for o in self.graph.function(site.step).ops if o.id == member.op)
            self.ops[site.step, op.id] = op
        placed = self.weights.placed(self.graph.phase, self.graph.step_key(site.step))
        arguments: list[Any] = []
        constants = {k: v for k, v in call.attributes.items() if k not in call.implied}
        for argument in call.arguments:
            if argument.source == "edge":
                arguments.append(self._cast(Site(site.step, argument.name or "")))
            elif argument.source == "weight":
                arguments.append(placed[argument.name or ""])
            elif argument.source == "state":
                op = next(iter(self._members(site.step, call)))
                arguments.append(self._slot(site.step, op, argument.name or ""))
            elif argument.source == "scalar":
                constants[argument.operand] = np.float32(step.scalars[argument.name or ""])
            else:
                arguments.append(None)
        made = run_kernel(call.kernel_id, call.function, arguments, constants)
        results = made if isinstance(made, tuple) else (made,)
        results = results[1:] if call.cache is not None else results
        return {
            Site(site.step, edge.name): np.asarray(value)
            for edge, value in zip(call.results, results, strict=False)
        }

    def _members(self, step: int, call: Call) -> list[Op]:
        names = {member.op for member in call.members}
        return [op for op in self.graph.function(step).ops if op.id in names]

    def _cast(self, site: Site) -> Array:
        value = self._value(site)
        kind = self.graph.type_of(site)
        return value if kind is None else value.astype(DTYPES[kind.dtype])


def run_kernel(
    kernel_id: str, function: str, arguments: list[Any], constants: Mapping[str, Any]
) -> Any:
    """Return what a kernel of the registry gives, called as generated code calls it.

    Its operands are arrays of JAX, as there: kernels update caches in place with `.at`.
    """
    module = importlib.import_module(f"cke.kernel_registry.kernels.{kernel_id}")
    kernel: Callable[..., Any] = getattr(module, function)
    operands = jax.tree.map(jnp.asarray, arguments)
    return kernel(*operands, **{name: _constant(item) for name, item in constants.items()})


def _definition(name: str) -> Callable[..., Any]:
    """Return the definition of an operator; `operand_1` is that operand, the op left out."""
    if name.startswith("operand_"):
        place = int(name.removeprefix("operand_"))
        return lambda *operands, **_: operands[place]
    return REFERENCES[name]


def _constant(value: Any) -> Any:
    return tuple(map(_constant, value)) if isinstance(value, list) else value


def _exact(value: Array) -> Array:
    return value if value.dtype.kind in "iub" else np.asarray(value, np.float64)
