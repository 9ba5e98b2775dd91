"""Ops of one function as elaboration makes them: edge names, checkpoints, aliases.

Every edge has a checkpoint: a point of a taxonomy, or the derived id
`edge/<instance>/<target>/<operator>`. An identity makes an alias of its input instead of an op.
"""

from collections.abc import Sequence

import msgspec

from cke.dsl.elaborated import Op
from cke.errors import Span
from cke.kernel_registry.operators import Operator
from cke.schemas.ir import Checkpoint, Contract, Edge, TensorType, Value


class Reference(msgspec.Struct, frozen=True):
    """A tensor as a statement sees it: an edge, parameter or weight by name, made at `span`.

    `pending` is the alias that a point of the same statement names.
    """

    name: str
    type: TensorType
    span: Span
    pending: str | None = None


class Target(msgspec.Struct, frozen=True):
    """The statement that a result belongs to: its instance and its name there."""

    instance: str
    name: str
    span: Span

    def edge(self) -> str:
        """Return the edge's name before it is made unique."""
        return f"{self.instance}.{self.name}" if self.instance else self.name


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """An operator applied to operands, before its results have names."""

    operator: Operator
    label: str
    instance: str
    inputs: tuple[str | None, ...]
    weights: tuple[str | None, ...]
    state: str | None
    attributes: dict[str, Value]
    layout: dict[str, Value]
    types: tuple[TensorType, ...]
    contract: Contract
    span: Span


class FunctionBuilder:
    """Collects the ops and aliases of one function."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._edges: dict[str, Edge] = {}
        self._aliases: dict[str, Edge] = {}
        self._taken: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._derived: dict[str, int] = {}
        self._points: dict[tuple[str, str | None], Span] = {}

    def reserve(self, name: str) -> None:
        """Keep an edge from taking the name of a parameter."""
        self._taken.setdefault(name, 1)

    def call(self, item: Invocation, targets: Sequence[Target]) -> tuple[Reference, ...]:
        """Add an op and return its results, one per target."""
        edges = []
        for target, type_ in zip(targets, item.types, strict=True):
            name = _numbered(self._taken, target.edge())
            checkpoint = self._derive(target, item.operator.name)
            edges.append(Edge(name=name, type=type_, checkpoint=checkpoint, span=target.span))
        label = f"{item.instance}.{item.label}" if item.instance else item.label
        self._ops.append(
            Op(
                id=_numbered(self._ids, label),
                operator=item.operator.name,
                instance=item.instance,
                inputs=item.inputs,
                weights=item.weights,
                state=item.state,
                attributes=item.attributes,
                layout=item.layout,
                results=tuple(edges),
                contract=item.contract,
                span=item.span,
            )
        )
        for edge in edges:
            self._edges[edge.name] = edge
        return tuple(Reference(edge.name, edge.type, edge.span) for edge in edges)

    def identity(self, source: Reference, operator: str, target: Target) -> Reference:
        """Record that an operator is the identity here: its edge is an alias of its input."""
        name = _numbered(self._taken, target.edge())
        self._alias(name, source, self._derive(target, operator), target.span)
        return Reference(source.name, source.type, source.span, pending=name)

    def attach(
        self, source: Reference, checkpoint: Checkpoint, target: Target, alias: bool = False
    ) -> None:
        """Give the value a point: to its own edge, or to an alias when the edge has one already."""
        pending = source.pending
        if alias:
            self._alias(_numbered(self._taken, target.edge()), source, checkpoint, target.span)
        elif pending is not None and self._aliases[pending].checkpoint.point is None:
            old = self._aliases[pending]
            self._aliases[pending] = msgspec.structs.replace(old, checkpoint=checkpoint)
        elif source.name in self._edges and self._edges[source.name].checkpoint.point is None:
            old = self._edges[source.name]
            self._edges[source.name] = msgspec.structs.replace(old, checkpoint=checkpoint)
        else:
            name = checkpoint.name if checkpoint.role is None else target.edge()
            self._alias(_numbered(self._taken, name), source, checkpoint, target.span)

    def finish(self, weights: frozenset[str]) -> tuple[tuple[Op, ...], tuple[Edge, ...]]:
        """Return the ops and aliases with their final checkpoints."""
        ops = tuple(
            msgspec.structs.replace(
                op, results=tuple(self._edges[edge.name] for edge in op.results)
            )
            for op in self._ops
        )
        kept = (edge for edge in self._aliases.values() if edge.alias_of not in weights)
        return ops, tuple(kept)

    def _alias(self, name: str, source: Reference, checkpoint: Checkpoint, span: Span) -> None:
        self._aliases[name] = Edge(
            name=name,
            type=source.type,
            checkpoint=checkpoint,
            span=span,
            alias_of=source.name,
        )

    def _derive(self, target: Target, operator: str) -> Checkpoint:
        middle = f"{target.instance}/" if target.instance else ""
        name = _numbered(self._derived, f"edge/{middle}{target.name}/{operator}")
        return Checkpoint(name=name, point=None, taxonomy=None, version=1, instance=target.instance)


def _numbered(counts: dict[str, int], name: str) -> str:
    """Return the name at its first use, then `name.2`, `name.3`."""
    number = counts.get(name, 0) + 1
    counts[name] = number
    return name if number == 1 else f"{name}.{number}"
