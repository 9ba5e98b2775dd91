"""A circuit's config under one model: every name gets a value, every key of the model a reader.

Names form a graph without cycles; order in the text is free. Problems are collected. Without a
model, values that depend on it are UNKNOWN.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import msgspec

from cke.dsl import syntax
from cke.dsl.accounting import unread_keys
from cke.dsl.circuit import Circuit
from cke.dsl.evaluate import (
    UNKNOWN,
    Absent,
    EvaluationError,
    Model,
    Value,
    evaluate,
)
from cke.dsl.model import NoModel, OpenModel
from cke.dsl.names import did_you_mean
from cke.dsl.reads import read_names, walk
from cke.dsl.resolve import with_source
from cke.dsl.values import alternatives, as_declared
from cke.errors import CkeError, Diagnostic, Note, Span
from cke.schemas.model_source import ModelSource

INDEX_LIMIT = 4096


class ConfigErrors(CkeError):
    """A config and a circuit that do not fit."""


class BoundConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The value of every config name, and of every schedule row at each index.

    `dims` holds the names of type dim that have a size. `rows` has one entry per index of the
    schedule's axis; without a model it is one entry, for an index that is unknown. The text that
    supplied a value is the span of the circuit's binding. `format` is hf, gguf or unknown.
    """

    format: str
    values: dict[str, Value]
    dims: dict[str, int]
    rows: tuple[dict[str, Value], ...]


def bind_config(
    circuit: Circuit, source: ModelSource | None, under: str | None = None
) -> BoundConfig:
    """Return the values under a model's config; ConfigErrors with every problem."""
    model: Model = NoModel() if source is None else OpenModel(source, under)
    binder = _Binder(circuit, model)
    values = binder.config()
    rows = binder.schedule(values)
    binder.require(values)
    problems = list(binder.problems)
    if isinstance(model, OpenModel):
        problems += unread_keys(circuit, model)
    if problems:
        raise ConfigErrors(with_source(problems, circuit.files))
    dims = {
        name: values[name]
        for name, bind in circuit.config.items()
        if _is_dim(bind.type) and isinstance(values[name], int)
    }
    return BoundConfig(format=model.format, values=values, dims=dims, rows=rows)


def _is_dim(type_: syntax.Type) -> bool:
    return type_.alternatives[0].name == "dim"


class _Scope:
    """Names of the config, of the schedule's row, and the alternatives, in one namespace."""

    def __init__(
        self, circuit: Circuit, model: Model, known: frozenset[str], values: Mapping[str, Value]
    ) -> None:
        self.model = model
        self.maps = circuit.maps
        self.known = known
        self.values = values

    def name(self, name: str, span: Span) -> Value:
        """Return the value of a name; an alternative is its own name."""
        if name in self.values:
            return self.values[name]
        if name == "source":
            return UNKNOWN if self.model.format == "unknown" else self.model.format
        if name in self.known:
            return name
        places: dict[str, Span | None] = dict.fromkeys([*self.values, *sorted(self.known)])
        raise EvaluationError(
            Diagnostic(
                code="CKE230",
                message=f"unknown name `{name}`",
                span=span,
                notes=did_you_mean(name, places),
            )
        )


class _Binder:
    def __init__(self, circuit: Circuit, model: Model) -> None:
        self.circuit = circuit
        self.model = model
        self.known = alternatives(circuit)
        self.problems: list[Diagnostic] = []

    def config(self) -> dict[str, Value]:
        """Return the value of every config name."""
        values: dict[str, Value] = {}
        for name in self._order(self.circuit.config, frozenset()):
            values[name] = self._bind(self.circuit.config[name], values)
        return {name: values[name] for name in self.circuit.config}

    def schedule(self, config: Mapping[str, Value]) -> tuple[dict[str, Value], ...]:
        """Return the rows at every index of the schedule's axis."""
        axis, index = self.circuit.axis, self.circuit.index
        if axis is None or index is None:
            return ()
        order = self._order(self.circuit.schedule_rows, frozenset(self.circuit.schedule_rows))
        count = config.get(axis)
        if count is UNKNOWN:
            return (self._row(order, {**config, index: UNKNOWN}),)
        if not isinstance(count, int) or not 0 <= count <= INDEX_LIMIT:
            self.problems.append(
                Diagnostic(
                    code="CKE305",
                    message=f"the schedule runs over `{axis}`, which is no dim up to {INDEX_LIMIT}",
                    span=self.circuit.schedule_span,
                )
            )
            return ()
        rows = []
        for place in range(count):
            found = len(self.problems)
            rows.append(self._row(order, {**config, index: place}))
            if len(self.problems) > found:
                break
        return tuple(rows)

    def require(self, values: Mapping[str, Value]) -> None:
        """Record every requirement that does not hold."""
        for row in self.circuit.requires:
            value = self._evaluate(row.condition, values)
            if value is not True and value is not UNKNOWN:
                self.problems.append(
                    Diagnostic(code="CKE304", message=row.message, span=row.condition.span)
                )

    def _row(self, order: Iterable[str], values: dict[str, Value]) -> dict[str, Value]:
        row: dict[str, Value] = {}
        for name in order:
            bind = self.circuit.schedule_rows[name]
            row[name] = self._bind(bind, values)
            values = {**values, name: row[name]}
        return {name: row[name] for name in self.circuit.schedule_rows if name in row}

    def _order(
        self, binds: Mapping[str, syntax.Bind], own_from_outside: frozenset[str]
    ) -> tuple[str, ...]:
        """Return the names so that each follows what it reads; a cycle is printed."""
        graph = {
            name: {
                read
                for read in read_names([bind.value])
                if read in binds and not (read == name and name in own_from_outside)
            }
            for name, bind in binds.items()
        }
        try:
            return tuple(TopologicalSorter(graph).static_order())
        except CycleError as error:
            path = list(reversed(error.args[1]))
            self.problems.append(
                Diagnostic(
                    code="CKE229",
                    message=f"`{path[0]}` needs its own value: {' → '.join(path)}",
                    span=binds[path[0]].name_span,
                )
            )
            raise ConfigErrors(with_source(self.problems, self.circuit.files)) from None

    def _bind(self, bind: syntax.Bind, values: Mapping[str, Value]) -> Value:
        found = len(self.problems)
        value = self._evaluate(bind.value, values)
        if value is UNKNOWN or len(self.problems) > found:
            return self._any_block(bind)
        optional = any(item.optional or item.name == "none" for item in bind.type.alternatives)
        if isinstance(value, Absent):
            if not optional:
                self.problems.append(self._missing(bind, value))
                return UNKNOWN
            return None
        try:
            return as_declared(bind.name, value, bind.type, bind.value.span)
        except EvaluationError as error:
            self.problems.append(error.diagnostic)
            return UNKNOWN

    def _any_block(self, bind: syntax.Bind) -> Value:
        """Return a block that the binding may name: checks without a config take the first."""
        if bind.type.alternatives[0].name != "block":
            return UNKNOWN
        names = (node.name for node in walk(bind.value) if isinstance(node, syntax.Name))
        return next((name for name in names if name in self.circuit.blocks), UNKNOWN)

    def _evaluate(self, expression: syntax.Expression, values: Mapping[str, Value]) -> Value:
        try:
            scope = _Scope(self.circuit, self.model, self.known, values)
            return evaluate(expression, scope)
        except EvaluationError as error:
            self.problems.append(error.diagnostic)
            return UNKNOWN

    def _missing(self, bind: syntax.Bind, value: Absent) -> Diagnostic:
        other = "gguf" if self.model.format == "hf" else "hf"
        keys = [f"`{key}`" for key in value.keys if not key.startswith(other)]
        listed = ", ".join(dict.fromkeys(keys)) or "any key of this format"
        return Diagnostic(
            code="CKE303",
            message=f"`{bind.name}` has no value: the config lacks {listed}",
            span=bind.name_span,
            notes=(
                Note("add a fallback with `??`, or make the type optional with `?`", label="help"),
            ),
        )
