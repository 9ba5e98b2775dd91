"""Scopes of elaboration: block instances, and where a name may find its value.

Goal: the text that supplied every value. Non-goal: tensors' shapes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cke.dsl import syntax
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import Reference
from cke.errors import Span
from cke.kernel_registry.operators import Operator
from cke.schemas.ir import StateSlot, TensorType

Static = Any
"""None, bool, int, float, str, a list, a scaling as a dict, or UNKNOWN."""


class Removed(msgspec.Struct, frozen=True):
    """A part that `when` removed."""

    name: str
    span: Span


class Poison(msgspec.Struct, frozen=True):
    """The value of a statement that has an error, so that the error is reported once."""


class Supplied(msgspec.Struct, frozen=True):
    """A value and the text that supplied it; `by` is None for what the session supplies."""

    value: Static
    by: Span | None


class SlotReference(msgspec.Struct, frozen=True):
    """A state slot of the function under elaboration."""

    slot: StateSlot


class OperatorPart(msgspec.Struct, frozen=True, kw_only=True):
    """An operator with its weights: what `q_proj(x)` calls."""

    name: str
    operator: Operator
    before: tuple[str, ...]
    attributes: dict[str, Static]
    weights: tuple[Reference | None, ...]
    span: Span


class BlockPart(msgspec.Struct, frozen=True, kw_only=True):
    """A block with its arguments and the prefixes of its tensors; `axis` when indexed."""

    name: str
    block: syntax.Block
    arguments: dict[str, Supplied]
    prefixes: tuple[str, ...]
    axis: str | None
    span: Span


class Conditional(msgspec.Struct, frozen=True):
    """A value that is bound only under conditions that no config has settled."""

    value: object
    conditions: tuple[str, ...]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What a circuit gives to every instance: resolved dims and config, the schedule's row here.

    `nominal` says that there is no config: every dim has the size `NOMINAL`.
    """

    blocks: Mapping[str, syntax.Block]
    sources: Mapping[str, tuple[syntax.Sources, ...]]
    dims: Mapping[str, int]
    config: Mapping[str, Supplied]
    row: Mapping[str, Supplied]
    inputs: Mapping[str, TensorType]
    nominal: bool


class Instance:
    """One use of a block: its path in the function, what it was given, and what it has bound."""

    def __init__(
        self,
        block: syntax.Block,
        path: str,
        environment: Environment,
        parent: "Instance | None" = None,
        arguments: Mapping[str, Supplied] | None = None,
        prefixes: tuple[str, ...] = ("",),
        called_at: Span | None = None,
    ) -> None:
        self.block = block
        self.path = path
        self.environment = environment
        self.parent = parent
        self.arguments = dict(arguments or {})
        self.prefixes = prefixes
        self.called_at = called_at
        self.bound: dict[str, object] = {}
        self.parts: dict[str, object] = {}
        self.givens = {name.name: (row, name.span) for row in block.given for name in row.names}
        self.resolved: dict[str, Supplied] = {}
        self.key_positions: Reference | None = None

    def chain(self) -> Iterator["Instance"]:
        """Yield this instance and those around it, nearest first."""
        instance: Instance | None = self
        while instance is not None:
            yield instance
            instance = instance.parent

    def child_path(self, part: str) -> str:
        """Return the path of a part."""
        return f"{self.path}.{part}" if self.path else part

    def size(self, axis: str) -> int | str | None:
        """Return the size of an axis here; None when nothing binds it."""
        for instance in self.chain():
            if axis in instance.arguments:
                value = instance.arguments[axis].value
                return NOMINAL if value is UNKNOWN else value
        found = self.environment.dims.get(axis)
        if found is None and axis in SYMBOLS:
            return axis
        return found

    def supplied(self, name: str) -> Supplied | None:
        """Return the value that the surroundings give to a name, before any default."""
        for instance in self.chain():
            if name in instance.arguments:
                return instance.arguments[name]
        environment = self.environment
        return environment.row.get(name) or environment.config.get(name)

    def outer(self, name: str) -> object | None:
        """Return an edge or parameter of an enclosing block."""
        for instance in self.chain():
            if instance is not self and name in instance.bound:
                return instance.bound[name]
        return None


NOMINAL = 16
"""The size of every dim in a check without a config: all divisions and products then fit."""

SYMBOLS = ("B", "T", "S")
