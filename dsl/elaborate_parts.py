"""Parts and state of an instance: operators with weights, tensors, blocks, slots.

A part that `when` removes stays known by name, so that an optional operand may name it.
"""

from collections.abc import Callable, Iterator

from cke.dsl import syntax
from cke.dsl.axes import axis_size, typed
from cke.dsl.elaborate_attributes import shape_axes, written
from cke.dsl.elaborate_errors import Errors, PoisonedError, error
from cke.dsl.elaborate_givens import Evaluate
from cke.dsl.elaborated import Clause, WeightUse
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.function_builder import Reference
from cke.dsl.scope import (
    NOMINAL,
    BlockPart,
    Instance,
    OperatorPart,
    Poison,
    Removed,
    SlotReference,
    Static,
    Supplied,
)
from cke.errors import Note, Span
from cke.kernel_registry.operators import OPERATORS, Operator, ShapeError
from cke.schemas.ir import Parameter, StateSlot, TensorType

WeightDtype = Callable[[Operator, Instance, str], str]
ClauseRow = tuple[tuple[str, ...], syntax.Clause]
TRANSFORMS = {"add": 1, "negate": 0, "log": 0}


class PartBuilder:
    """Makes the parts of one instance; `declare` receives every weight and slot of them."""

    def __init__(
        self,
        instance: Instance,
        format: str,
        dtype: str,
        evaluate: Evaluate,
        weight_dtype: WeightDtype,
        errors: Errors,
    ) -> None:
        self._instance = instance
        self._format = format
        self._dtype = dtype
        self._evaluate = evaluate
        self._weight_dtype = weight_dtype
        self._errors = errors
        self.weights: dict[str, WeightUse] = {}
        self.slots: list[StateSlot] = []

    def build(self) -> None:
        """Fill the instance's parts and slots."""
        instance = self._instance
        for row in instance.block.parts:
            if isinstance(row, syntax.Part):
                instance.parts[row.name] = Poison()
                with self._errors.collected(instance):
                    instance.parts[row.name] = self._part(row)
        for state in instance.block.state:
            if self._holds(state.condition):
                slot = self._slot(state)
                self.slots.append(slot)
                instance.parts[state.name] = SlotReference(slot)
            else:
                instance.parts[state.name] = Removed(state.name, state.span)

    def _holds(self, condition: syntax.Expression | None) -> bool:
        if condition is None:
            return True
        value = self._evaluate(condition, self._instance)
        return value is UNKNOWN or bool(value)

    def _part(self, row: syntax.Part) -> object:
        if not self._holds(row.condition):
            return Removed(row.name, row.name_span)
        constructor = next(
            choice.constructor for choice in row.choices if self._holds(choice.condition)
        )
        if constructor.name == "tensor":
            return self._tensor(row, constructor)
        name = self._target(constructor)
        if name in self._instance.environment.blocks:
            return self._block(row, constructor, self._instance.environment.blocks[name])
        operator = OPERATORS.get(name)
        if operator is None or operator.weight_rule is None:
            raise error(
                "CKE211",
                constructor.span,
                f"`{constructor.name}` is no block, and no operator with weights",
            )
        return self._operator(row, constructor, operator)

    def _target(self, constructor: syntax.Constructor) -> str:
        """Return the block or operator that a constructor names, through a given if need be."""
        if constructor.name not in self._instance.givens:
            return constructor.name
        name = syntax.Name(span=constructor.span, name=constructor.name)
        value = self._evaluate(name, self._instance)
        default = self._instance.givens[constructor.name][0].default
        if value is UNKNOWN and default is not None:
            value = self._evaluate(default, self._instance)
        if value is UNKNOWN:
            raise PoisonedError
        return str(value)

    def _tensor(self, row: syntax.Part, constructor: syntax.Constructor) -> Reference:
        axes, _ = shape_axes(constructor.shape)
        type_ = typed(axes, self._instance, self._dtype, constructor.span)
        name = self._instance.child_path(row.name)
        self._declare(row, name, type_, tuple((axis,) for axis in axes), (), "")
        return Reference(name, type_, row.name_span)

    def _block(
        self, row: syntax.Part, constructor: syntax.Constructor, block: syntax.Block
    ) -> BlockPart:
        arguments: dict[str, Supplied] = {}
        for argument in constructor.arguments:
            name = argument.name
            if name is None and isinstance(argument.value, syntax.Name):
                name = argument.value.name
            value = self._evaluate(argument.value, self._instance)
            arguments[name or ""] = Supplied(value, argument.span)
        prefixes = tuple(
            dict.fromkeys(
                _joined(prefix, text.value)
                for _, clause in self._clauses(row.name)
                if isinstance(clause, syntax.Source)
                for prefix in self._instance.prefixes
                for text in clause.names
            )
        )
        return BlockPart(
            name=row.name,
            block=block,
            arguments=arguments,
            prefixes=prefixes,
            axis=None if row.axis is None else row.axis.name,
            span=row.name_span,
        )

    def _operator(
        self, row: syntax.Part, constructor: syntax.Constructor, operator: Operator
    ) -> OperatorPart:
        before, after = shape_axes(constructor.shape)
        values = written(operator, row.name, constructor.arguments, self._instance, self._evaluate)
        filled = {name: False if v is UNKNOWN else v for name, v in values.items()}
        assert operator.weight_rule is not None
        try:
            axes = operator.weight_rule(before, after, filled)
        except ShapeError as problem:
            raise error("CKE210", constructor.span, f"`{operator.name}` {problem}") from problem
        dtype = self._weight_dtype(operator, self._instance, row.name)
        whole = next(iter(axes.values()), ())
        weights: list[Reference | None] = []
        for operand in operator.weights:
            if operand.name not in axes:
                weights.append(None)
                continue
            type_ = self._weight_type(axes[operand.name], dtype, constructor.span)
            name = f"{self._instance.child_path(row.name)}.{operand.name}"
            grouped = _grouped(operator.name, before, after, axes[operand.name])
            dropped = tuple(axis for axis in whole if axis not in axes[operand.name])
            self._declare(row, name, type_, grouped, dropped, f".{operand.name}")
            weights.append(Reference(name, type_, row.name_span))
        return OperatorPart(
            name=row.name,
            operator=operator,
            before=before if after else (),
            attributes=values,
            weights=tuple(weights),
            span=row.name_span,
        )

    def _weight_type(self, axes: tuple[str, ...], dtype: str, span: Span) -> TensorType:
        sizes = tuple(axis_size(axis, self._instance, span) for axis in axes)
        return TensorType(axes=axes, shape=sizes, dtype=dtype)

    def _declare(
        self,
        row: syntax.Part,
        name: str,
        type_: TensorType,
        grouped: tuple[tuple[str, ...], ...],
        dropped: tuple[str, ...],
        suffix: str,
    ) -> None:
        clauses: list[Clause] = []
        tied = None
        for names, clause in self._clauses(row.name):
            if isinstance(clause, syntax.Tied):
                if self._evaluate(clause.condition, self._instance) is True:
                    tied = f"{self._instance.child_path(clause.part.name)}{suffix}"
            elif self._holds(clause.condition):
                clauses.append(self._clause(names, row.name, clause, suffix))
        self.weights[name] = WeightUse(
            name=name,
            type=type_,
            grouped=grouped,
            dropped=dropped,
            clauses=tuple(clauses),
            tied=tied,
            sizes=self._sizes(clauses, type_),
            span=row.name_span,
        )

    def _clause(
        self, names: tuple[str, ...], part: str, source: syntax.Source, suffix: str
    ) -> Clause:
        full = tuple(
            dict.fromkeys(
                _joined(prefix, text.value) + suffix
                for text in source.names
                for prefix in (self._instance.prefixes if not text.value.startswith("/") else ("",))
            )
        )
        return Clause(
            names=full,
            layout=source.layout,
            member=names.index(part),
            members=len(names),
            transforms=tuple(map(self._transform, source.transforms)),
            span=source.span,
        )

    def _transform(self, transform: syntax.Transform) -> tuple[str, tuple[float, ...]]:
        if TRANSFORMS.get(transform.name) != len(transform.arguments):
            raise error(
                "CKE242",
                transform.span,
                f"`{transform.name}` is no transform of {len(transform.arguments)} arguments",
                Note("transforms are add(value), negate and log", label="help"),
            )
        values = [self._evaluate(each.value, self._instance) for each in transform.arguments]
        numbers = [0.0 if value is UNKNOWN else float(value) for value in values]  # type: ignore[arg-type]
        return transform.name, tuple(numbers)

    def _clauses(self, part: str) -> list[ClauseRow]:
        """Return the clauses of a part; rows of `parts of` replace those of the same format."""
        own = list(_mentions(self._own_rows(), part))
        extra = self._instance.environment.sources.get(self._instance.block.name, ())
        override = list(_mentions((row for row in extra if self._row_holds(row)), part))
        formats = {c.format for _, c in override if isinstance(c, syntax.Source)}
        kept = [
            (names, clause)
            for names, clause in own
            if not (isinstance(clause, syntax.Source) and clause.format in formats)
        ]
        return [
            (names, clause)
            for names, clause in (*override, *kept)
            if isinstance(clause, syntax.Tied) or clause.format == self._format
        ]

    def _own_rows(self) -> Iterator[syntax.PartRow]:
        for row in self._instance.block.parts:
            if isinstance(row, syntax.Part) or self._row_holds(row):
                yield row

    def _row_holds(self, row: syntax.Sources) -> bool:
        return self._holds(row.condition)

    def _sizes(self, clauses: list[Clause], type_: TensorType) -> dict[str, int]:
        """Return the size of every axis that a stored layout may name."""
        names = set(type_.axes)
        for clause in clauses:
            if clause.layout is not None:
                names |= set(_layout_names(clause.layout.axes))
            names |= {
                each
                for each in self._instance.environment.dims
                if any("{" + each + "}" in n for n in clause.names)
            }
        sizes = {}
        for name in sorted(names):
            size = axis_size(name, self._instance, type_span(clauses, self._instance))
            if isinstance(size, int):
                sizes[name] = size
        return sizes

    def _slot(self, row: syntax.StateRow) -> StateSlot:
        kind = row.kind.name
        if kind not in ("cache", "shift", "carry"):
            raise error(
                "CKE231", row.kind.span, f"state expects cache | shift | carry, got `{kind}`"
            )
        lanes: list[Parameter] = []
        options: dict[str, Static] = {}
        for argument in row.arguments:
            if isinstance(argument.value, syntax.ListOf):
                lanes.append(self._lane(argument, kind, row))
            elif argument.name == "dtype" and isinstance(argument.value, syntax.Name):
                options["dtype"] = argument.value.name
            else:
                options[argument.name or ""] = self._evaluate(argument.value, self._instance)
        keep = NOMINAL if options.get("keep") is UNKNOWN else options.get("keep")
        window = options.get("window")
        lanes = [_sized(lane, options.get("dtype"), keep) for lane in lanes]
        return StateSlot(
            name=self._instance.child_path(row.name),
            kind=kind,
            lanes=tuple(lanes),
            window=None if window is UNKNOWN else window,
            keep=keep,
            span=row.span,
        )

    def _lane(self, argument: syntax.Argument, kind: str, row: syntax.StateRow) -> Parameter:
        assert isinstance(argument.value, syntax.ListOf)
        axes = []
        for item in argument.value.items:
            if not isinstance(item, syntax.Name):
                raise error("CKE210", item.span, "a lane lists its axes by name")
            axes.append(item.name)
        lead = ("B",) if kind == "carry" else ("B", "S")
        type_ = typed((*lead, *axes), self._instance, self._dtype, argument.span)
        return Parameter(name=argument.name or "", type=type_)


def type_span(clauses: list[Clause], instance: Instance) -> Span:
    """Return where an unknown axis of a layout is reported."""
    return clauses[0].span if clauses else instance.block.signature


def _sized(lane: Parameter, dtype: str | None, keep: int | None) -> Parameter:
    """Return the lane in its own dtype; a shift has `keep` rows."""
    own = lane.type
    shape = own.shape if keep is None else (own.shape[0], keep, *own.shape[2:])
    type_ = TensorType(axes=own.axes, shape=shape, dtype=dtype or own.dtype)
    return Parameter(name=lane.name, type=type_)


def _mentions(rows: Iterator[syntax.PartRow], part: str) -> Iterator[ClauseRow]:
    for row in rows:
        names = (row.name,) if isinstance(row, syntax.Part) else tuple(n.name for n in row.names)
        if part in names:
            for clause in row.clauses:
                yield names, clause


def _grouped(
    operator: str, before: tuple[str, ...], after: tuple[str, ...], axes: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    """Return which axes a file joins to one dimension when a source has no layout."""
    if operator == "linear":
        return (after, before) if len(axes) > len(after) else (after,)
    if operator == "embedding":
        return (before, after)
    if operator in ("rms_norm", "layer_norm"):
        return (axes,)
    return tuple((axis,) for axis in axes)


def _joined(prefix: str, name: str) -> str:
    if name.startswith("/"):
        return name[1:]
    return ".".join(part for part in (prefix, name) if part)


def _layout_names(dimensions: tuple[syntax.Dimension, ...]) -> Iterator[str]:
    for dimension in dimensions:
        for product in dimension.terms:
            yield from _product_names(product)


def _product_names(product: syntax.Product) -> Iterator[str]:
    for atom in product.atoms:
        if isinstance(atom, syntax.AxisGroup):
            for term in atom.terms:
                yield from _product_names(term)
        elif isinstance(atom, syntax.AxisFraction):
            yield atom.name
            if isinstance(atom.divisor, str):
                yield atom.divisor
        elif not isinstance(atom, syntax.AxisLiteral):
            yield atom.name
