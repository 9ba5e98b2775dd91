"""Attributes of operators: values of the declared kinds, defaults, and what a slot supplies."""

from collections.abc import Mapping

import msgspec

from cke.dsl import syntax
from cke.dsl.axes import axis_names, check_distinct
from cke.dsl.elaborate_errors import error
from cke.dsl.elaborate_givens import Evaluate
from cke.dsl.evaluate import UNKNOWN
from cke.dsl.scope import NOMINAL, Instance, Static
from cke.errors import Note, Span
from cke.kernel_registry.operators import Attribute, Operator
from cke.schemas.ir import StateSlot

PLACEHOLDERS: dict[str, Static] = {"int": 1, "float": 1.0, "bool": False, "str": "", "list": []}


def written(
    operator: Operator,
    label: str,
    arguments: tuple[syntax.Argument, ...],
    instance: Instance,
    evaluate: Evaluate,
) -> dict[str, Static]:
    """Return the attributes that a constructor or call gives; `eps` alone means `eps: eps`."""
    declared = {item.name: item for item in operator.attributes if not item.hidden}
    values: dict[str, Static] = {}
    for argument in arguments:
        name = argument.name
        if name is None and isinstance(argument.value, syntax.Name):
            name = argument.value.name
        if name not in declared:
            raise error(
                "CKE214",
                argument.span,
                f"`{label}` has no attribute `{name}`",
                Note(f"`{operator.name}` takes {', '.join(declared) or 'none'}", label="help"),
            )
        values[name] = _value(declared[name], argument, instance, evaluate)
    return values


def complete(
    operator: Operator,
    label: str,
    values: Mapping[str, Static],
    slot: StateSlot | None,
    before: tuple[str, ...],
    instance: Instance,
    span: Span,
) -> dict[str, Static]:
    """Return every attribute: the written ones, defaults, and what the surroundings know."""
    result = dict(values)
    for item in operator.attributes:
        if item.hidden:
            result[item.name] = _hidden(item, result, slot, before, instance)
        elif item.name not in result and item.default is msgspec.UNSET:
            if not item.optional:
                raise error("CKE214", span, f"`{label}` needs the attribute `{item.name}`")
            result[item.name] = None
        elif item.name not in result:
            result[item.name] = item.default
        elif result[item.name] is UNKNOWN:
            result[item.name] = _placeholder(item)
    return result


def _value(
    item: Attribute, argument: syntax.Argument, instance: Instance, evaluate: Evaluate
) -> Static:
    if item.kind == "axis":
        return _axis(argument.value, item.name)
    value = evaluate(argument.value, instance)
    if value is UNKNOWN or (value is None and item.optional):
        return value
    return _typed(item, value, argument.value.span)


def _axis(expression: syntax.Expression, name: str) -> str:
    if isinstance(expression, syntax.Name):
        return expression.name
    raise error("CKE231", expression.span, f"`{name}` expects the name of an axis")


def _typed(item: Attribute, value: Static, span: Span) -> Static:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match item.kind:
        case "float" if number:
            return float(value)
        case "int" if number and value == int(value):
            return int(value)
        case "bool" if isinstance(value, bool):
            return value
        case "choice" if value in item.alternatives:
            return value
        case "scaling" if isinstance(value, dict):
            return value
        case "list" if isinstance(value, list):
            return value
        case "str" if isinstance(value, str):
            return value
    expected = " | ".join(map(str, item.alternatives)) if item.kind == "choice" else item.kind
    notes: tuple[Note, ...] = ()
    if isinstance(value, str) and value in item.spellings:
        notes = (Note(f"`{value}` is spelled `{item.spellings[value]}` here", label="help"),)
    shown = "none" if value is None else value
    raise error("CKE231", span, f"`{item.name}` expects {expected}, got `{shown}`", *notes)


def _hidden(
    item: Attribute,
    values: Mapping[str, Static],
    slot: StateSlot | None,
    before: tuple[str, ...],
    instance: Instance,
) -> Static:
    match item.source:
        case "slot.lanes" if slot is not None:
            return [lane.name for lane in slot.lanes]
        case "slot.window" if slot is not None:
            return slot.window
        case "slot.keep" if slot is not None:
            return slot.keep
        case "slot.axes" if slot is not None:
            return [*slot.lanes[0].type.axes[1:]]
        case "axis.size":
            return instance.size(values["axis"])
        case "constructor.before" if before:
            return list(before)
    return None if item.default is msgspec.UNSET else item.default


def _placeholder(item: Attribute) -> Static:
    """Return a value for a check without a config."""
    if item.optional or item.kind == "scaling":
        return None
    if item.kind == "choice":
        return item.alternatives[0]
    if item.name == "width":
        return NOMINAL
    return PLACEHOLDERS[item.kind]


def shape_axes(shape: syntax.Shape | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes before and after `->` of a constructor; each side names an axis once."""
    if shape is None:
        return (), ()
    before = axis_names(shape.axes)
    after = () if shape.result is None else axis_names(shape.result)
    check_distinct(before, shape.span)
    check_distinct(after, shape.span)
    return before, after
