"""Application of operators: operands by position, hidden operands, shapes, contracts."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from cke.dsl.contracts import FLOATS, Numerics
from cke.dsl.elaborate_attributes import complete
from cke.dsl.elaborate_errors import counted, error
from cke.dsl.function_builder import FunctionBuilder, Invocation, Reference, Target
from cke.dsl.scope import NOMINAL, Instance, Removed, SlotReference, Static
from cke.errors import Note, Span
from cke.kernel_registry.operators import Inference, Operand, Operator, ShapeError
from cke.schemas.ir import StateSlot, TensorType

Operands = list[Reference | None]


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """An operator as a circuit applies it, before its shapes are known."""

    operator: Operator
    label: str
    instance: Instance
    positional: tuple[object, ...]
    attributes: Mapping[str, Static]
    weights: tuple[Reference | None, ...] = ()
    before: tuple[str, ...] = ()
    span: Span


class Applier:
    """Adds applications to a function; `hidden` finds positions and the like."""

    def __init__(
        self,
        builder: FunctionBuilder,
        numerics: Numerics,
        hidden: Callable[[str, Instance, Span], Reference],
        use: Callable[[str], None],
        nominal: bool,
    ) -> None:
        self._builder = builder
        self._numerics = numerics
        self._hidden = hidden
        self._use = use
        self._nominal = nominal

    def apply(self, item: Application, targets: Sequence[Target]) -> tuple[Reference, ...]:
        """Return the visible results; an identity gives its input back."""
        slot, operands = self._operands(item)
        attributes = complete(
            item.operator, item.label, item.attributes, slot, item.before, item.instance, item.span
        )
        if item.operator.identity_when is not None and item.operator.identity_when(attributes):
            source = operands[0]
            assert source is not None
            return (self._builder.identity(source, item.operator.name, targets[0]),)
        operands = self._with_hidden(item, operands, attributes)
        inference = self._infer(item, operands, attributes)
        results = self._call(item, slot, operands, attributes, inference, targets)
        if item.operator.name == "append":
            item.instance.key_positions = results[-1]
        return results[: len(targets)]

    def _operands(self, item: Application) -> tuple[StateSlot | None, Operands]:
        """Return the slot, and a reference or None per visible input."""
        slot = next((v.slot for v in item.positional if isinstance(v, SlotReference)), None)
        if (slot is None) != (item.operator.state is None) or (
            slot is not None and slot.kind != item.operator.state
        ):
            expected = item.operator.state or "no state"
            got = "none" if slot is None else slot.kind
            raise error("CKE212", item.span, f"`{item.label}` takes {expected}, got {got}")
        values = [v for v in item.positional if not isinstance(v, SlotReference)]
        declared = [operand for operand in item.operator.inputs if not operand.hidden]
        variadic = bool(declared) and declared[-1].variadic
        if len(values) > len(declared) and not variadic:
            raise error(
                "CKE212",
                item.span,
                f"`{item.label}` takes {counted(len(declared), 'operand')}, got {len(values)}",
            )
        if variadic:
            declared += [declared[-1]] * (len(values) - len(declared))
        values += [None] * (len(declared) - len(values))
        pairs = zip(declared, values, strict=True)
        return slot, [self._operand(item, operand, value) for operand, value in pairs]

    def _operand(self, item: Application, operand: Operand, value: object) -> Reference | None:
        if isinstance(value, Reference):
            return value
        if isinstance(value, Removed) and operand.absent is None:
            raise error(
                "CKE216",
                item.span,
                f"`{item.label}` needs `{operand.name}`, and `{value.name}` was removed",
                Note(f"`{value.name}` has a `when` that does not hold", value.span),
            )
        if value is None and operand.absent is None:
            raise error("CKE212", item.span, f"`{item.label}` needs `{operand.name}`, got none")
        if value is None or isinstance(value, Removed):
            return None
        raise error(
            "CKE212",
            item.span,
            f"`{item.label}` needs a tensor for `{operand.name}`, got `{value}`",
        )

    def _with_hidden(
        self, item: Application, operands: Operands, attributes: Mapping[str, Static]
    ) -> Operands:
        """Return the operands with those that instantiation supplies in their places."""
        visible = iter(operands)
        result: Operands = []
        masked = attributes.get("mask") == "causal" or attributes.get("window") is not None
        for operand in item.operator.inputs:
            if not operand.hidden:
                result += [*visible] if operand.variadic else [next(visible)]
            elif operand.absent is not None and not masked:
                result.append(None)
            elif operand.name == "key_positions" and item.instance.key_positions is not None:
                result.append(item.instance.key_positions)
            else:
                result.append(self._hidden("positions", item.instance, item.span))
        return result

    def _infer(
        self,
        item: Application,
        operands: Operands,
        attributes: Mapping[str, Static],
    ) -> Inference:
        cast = self._numerics.explicit_input(item.operator, self._paths(item))
        types = [None if each is None else _cast(each.type, cast) for each in operands]
        weights = [None if each is None else each.type for each in item.weights]
        if self._nominal and item.operator.name == "split":
            attributes = {**attributes, "sizes": _nominal_sizes(len(attributes["sizes"]))}
        try:
            found = item.operator.shape_rule(types, weights, attributes)
        except ShapeError as problem:
            notes = _origins([each for each in operands if each is not None])
            raise error("CKE212", item.span, f"`{item.label}` {problem}", *notes) from problem
        if self._nominal:
            return Inference(tuple(map(_nominal, found.results)), found.layout)
        return found

    def _call(
        self,
        item: Application,
        slot: StateSlot | None,
        operands: Operands,
        attributes: dict[str, Static],
        inference: Inference,
        targets: Sequence[Target],
    ) -> tuple[Reference, ...]:
        instance = item.instance
        inputs = [None if each is None else each.type for each in operands]
        weights = [None if each is None else each.type for each in item.weights]
        contract = self._numerics.contract(item.operator, self._paths(item), inputs, weights)
        output = contract.storage.get("output")
        types = tuple(_cast(each, output) for each in inference.results)
        hidden = [r.name for r in item.operator.results if r.hidden]
        if len(types) != len(targets) + len(hidden):
            raise error(
                "CKE212",
                item.span,
                f"`{item.label}` gives {counted(len(types) - len(hidden), 'result')}, "
                f"got {counted(len(targets), 'name')}",
            )
        extra = [Target(instance.path, name, item.span) for name in hidden]
        for each in (*operands, *item.weights):
            if each is not None:
                self._use(each.name)
        return self._builder.call(
            Invocation(
                operator=item.operator,
                label=item.label,
                instance=instance.path,
                inputs=tuple(None if each is None else each.name for each in operands),
                weights=tuple(None if each is None else each.name for each in item.weights),
                state=None if slot is None else slot.name,
                attributes=attributes,
                layout=dict(inference.layout),
                types=types,
                contract=contract,
                span=item.span,
            ),
            [*targets, *extra],
        )

    def _paths(self, item: Application) -> tuple[str, ...]:
        return part_paths(item.instance, item.label)


def part_paths(instance: Instance, part: str) -> tuple[str, ...]:
    """Return the selectors that mean this part: by its block, and by its instance."""
    return (f"{instance.block.name}.{part}", instance.child_path(part))


def _origins(operands: Sequence[Reference]) -> tuple[Note, ...]:
    """Return where each operand came to be; a single one has the type of the message."""
    if len(operands) == 1:
        return (Note(f"`{operands[0].name}` has that type from", operands[0].span),)
    return tuple(
        Note(f"`{each.name}` is [{', '.join(each.type.axes)}] from", each.span) for each in operands
    )


def _cast(type_: TensorType, dtype: str | None) -> TensorType:
    if dtype is None or type_.dtype not in FLOATS:
        return type_
    return TensorType(axes=type_.axes, shape=type_.shape, dtype=dtype)


def _nominal(type_: TensorType) -> TensorType:
    shape = tuple(NOMINAL if isinstance(size, int) else size for size in type_.shape)
    return TensorType(axes=type_.axes, shape=shape, dtype=type_.dtype)


def _nominal_sizes(count: int) -> list[int]:
    return [NOMINAL - count + 1, *[1] * (count - 1)]
