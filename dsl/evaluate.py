"""Evaluation of config, schedule and match expressions over a model's own config.

A key that the config lacks is an `Absent`, which passes through arithmetic, names and indices
until `??` takes the next value. Without a config every key is `UNKNOWN`, which passes likewise.
Goal: no exception but EvaluationError. Non-goal: tensors; blocks are elaborated elsewhere.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from cke.dsl import syntax
from cke.dsl.reads import KeyPath, key_path
from cke.errors import Diagnostic, Note, Span
from cke.kernel_registry.operators import SCALINGS, SPELLINGS, ShapeError, scaling


class Unknown:
    """A value that only a config supplies."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class Absent(msgspec.Struct, frozen=True):
    """No value: `keys` are the keys that were looked for."""

    keys: tuple[str, ...]


Value = Any
"""None, bool, int, float, str, list, dict, UNKNOWN or Absent."""


class EvaluationError(Exception):
    """An expression that has no value; the diagnostic says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


class Model(Protocol):
    """What expressions may ask of a model."""

    format: str

    def key(self, path: KeyPath) -> Value:
        """Return the value of a key, or Absent."""
        ...

    def full_key(self, key: str) -> Value:
        """Return the value of a GGUF key with its prefix, or Absent."""
        ...

    def has(self, tensor: str) -> Value:
        """Tell whether the file holds a tensor."""
        ...

    def size(self, tensor: str, axis: int) -> Value:
        """Return a tensor's extent, or Absent."""
        ...

    def tensor(self, name: str) -> Value:
        """Return a small tensor's elements, or Absent."""
        ...


class Scope(Protocol):
    """What names stand for."""

    @property
    def model(self) -> Model:
        """The model that keys are read of."""
        ...

    @property
    def maps(self) -> Mapping[str, syntax.MapTable]:
        """The maps in use."""
        ...

    def name(self, name: str, span: Span) -> Value:
        """Return the value of a name; an alternative is its own name."""
        ...


def evaluate(expression: syntax.Expression, scope: Scope) -> Value:
    """Return the value; EvaluationError says what cannot be computed."""
    return _Evaluator(scope).value(expression)


def fail(code: str, span: Span, message: str, *notes: Note) -> EvaluationError:
    """Return the error of an expression."""
    return EvaluationError(Diagnostic(code=code, message=message, span=span, notes=notes))


def is_number(value: Value) -> bool:
    """Tell whether a value is an int or float, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMERIC: dict[str, tuple[Callable[..., Any], int]] = {
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "log": (math.log, 1),
    "sqrt": (math.sqrt, 1),
    "min": (min, 2),
    "max": (max, 2),
}
FILE = {"has": ("str",), "size": ("str", "int"), "tensor": ("str",)}
EXPONENT_LIMIT = 1024
FUNCTIONS = (*NUMERIC, *FILE, "absent")


class _Evaluator:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def value(self, node: syntax.Expression) -> Value:
        match node:
            case syntax.Literal():
                return node.value
            case syntax.Name():
                return self.scope.name(node.name, node.span)
            case syntax.Root():
                return node.format
            case syntax.ListOf():
                return _whole([self.value(item) for item in node.items])
            case syntax.Table():
                return {pair.key: self.value(pair.value) for pair in node.pairs}
            case syntax.Get():
                return self._get(node)
            case syntax.Index():
                return self._index(node)
            case syntax.Call():
                return self._call(node)
            case syntax.Via():
                return self._via(node)
            case syntax.Unary():
                return self._unary(node)
            case syntax.Binary():
                return self._binary(node)
            case syntax.Conditional():
                return self._conditional(node)

    def _get(self, node: syntax.Get) -> Value:
        path = key_path(node)
        if path is not None:
            return self.scope.model.key(path)
        table = self.value(node.value)
        if isinstance(table, Absent):
            return Absent((*table.keys, node.name))
        if table is UNKNOWN:
            return UNKNOWN
        if table is None:
            return Absent((node.name,))
        if not isinstance(table, dict):
            raise fail("CKE232", node.span, f"`.{node.name}` expects a table, got `{shown(table)}`")
        return table[node.name] if node.name in table else Absent((node.name,))

    def _index(self, node: syntax.Index) -> Value:
        index = self.value(node.index)
        if isinstance(node.value, syntax.Root):
            return self.scope.model.full_key(self._text(index, node.index.span))
        items = self.value(node.value)
        if isinstance(items, Absent) or items is UNKNOWN:
            return items
        if isinstance(index, Absent) or index is UNKNOWN:
            return index
        if items is None:
            return Absent(("an index of none",))
        if not isinstance(items, list) or not is_number(index):
            raise fail(
                "CKE232",
                node.span,
                f"an index expects a list, got `{shown(items)}[{shown(index)}]`",
            )
        if not 0 <= index < len(items):
            message = f"index {index} is outside the list of {len(items)} items"
            raise fail("CKE233", node.span, message)
        return items[int(index)]

    def _text(self, value: Value, span: Span) -> str:
        if not isinstance(value, str):
            raise fail("CKE232", span, f"expected a string, got `{shown(value)}`")
        return value

    def _call(self, node: syntax.Call) -> Value:
        name = node.function.name if isinstance(node.function, syntax.Name) else ""
        if name == "absent":
            return self._is_absent(node)
        if name in SCALINGS:
            return self._scaling(name, node)
        if name not in FUNCTIONS:
            raise fail(
                "CKE234",
                node.span,
                f"expected a config function, got `{name or 'an expression'}`",
                Note(f"functions are {', '.join(FUNCTIONS)} and scalings", label="help"),
            )
        values = [self.value(argument.value) for argument in node.arguments]
        for value in values:
            if value is UNKNOWN or isinstance(value, Absent):
                return value
        return self._file(name, values, node) if name in FILE else _number(name, values, node)

    def _is_absent(self, node: syntax.Call) -> Value:
        if len(node.arguments) != 1:
            raise fail("CKE234", node.span, "`absent` expects one key")
        value = self.value(node.arguments[0].value)
        return UNKNOWN if value is UNKNOWN else isinstance(value, Absent)

    def _scaling(self, name: str, node: syntax.Call) -> Value:
        """Return a scaling as a table with every parameter; absent ones take their default."""
        values: dict[str, Value] = {}
        for argument in node.arguments:
            if argument.name is None:
                raise fail("CKE234", argument.span, f"`{name}` takes named parameters")
            value = self.value(argument.value)
            values[argument.name] = _or_none(value)
        try:
            return scaling(name, values)
        except ShapeError as error:
            raise fail("CKE234", node.span, f"`{name}`: {error}") from None

    def _file(self, name: str, values: list[Value], node: syntax.Call) -> Value:
        kinds = tuple(type(value).__name__ for value in values)
        if kinds != FILE[name]:
            message = f"`{name}` expects ({', '.join(FILE[name])}), got ({', '.join(kinds)})"
            raise fail("CKE234", node.span, message)
        functions: dict[str, Callable[..., Value]] = {
            "has": self.scope.model.has,
            "size": self.scope.model.size,
            "tensor": self.scope.model.tensor,
        }
        return functions[name](*values)

    def _via(self, node: syntax.Via) -> Value:
        value = self.value(node.value)
        if value is UNKNOWN or value is None or isinstance(value, Absent):
            return value
        pairs = self._map(node.mapping)
        text = self._text(value, node.value.span)
        if text not in pairs:
            raise fail(
                "CKE235",
                node.span,
                f"the map has no entry for `{text}`",
                Note(f"it knows {', '.join(sorted(pairs))}", label="help"),
            )
        return pairs[text]

    def _map(self, mapping: syntax.Name | syntax.Table) -> dict[str, Value]:
        if isinstance(mapping, syntax.Name) and mapping.name in SPELLINGS:
            known = SPELLINGS[mapping.name]
            spelled = {**known, **{name: name for name in known.values()}}
            return {key: None if name == "none" else name for key, name in spelled.items()}
        if isinstance(mapping, syntax.Name):
            if mapping.name not in self.scope.maps:
                raise fail("CKE236", mapping.span, f"no map `{mapping.name}` is in use")
            pairs = self.scope.maps[mapping.name].pairs
        else:
            pairs = mapping.pairs
        return {pair.key: self._alternative(pair.value) for pair in pairs}

    def _alternative(self, node: syntax.Expression) -> Value:
        return node.name if isinstance(node, syntax.Name) else self.value(node)

    def _unary(self, node: syntax.Unary) -> Value:
        value = self.value(node.operand)
        if value is UNKNOWN or isinstance(value, Absent):
            return value
        if node.operator == "not" and isinstance(value, bool):
            return not value
        if node.operator == "-" and is_number(value):
            return -value
        expected = "a truth value" if node.operator == "not" else "a number"
        message = f"`{node.operator}` expects {expected}, got `{shown(value)}`"
        raise fail("CKE232", node.span, message)

    def _binary(self, node: syntax.Binary) -> Value:
        sign = node.operator
        left = self.value(node.left)
        if sign == "??":
            return self._fallback(left, node)
        if sign in ("and", "or"):
            return self._logical(sign, left, node)
        right = self.value(node.right)
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        if sign in ("==", "!="):
            return (_or_none(left) == _or_none(right)) == (sign == "==")
        absent = [value for value in (left, right) if isinstance(value, Absent)]
        if absent:
            return Absent(tuple(key for value in absent for key in value.keys))
        if sign == "in":
            return self._contains(left, right, node)
        return self._arithmetic(sign, left, right, node)

    def _fallback(self, left: Value, node: syntax.Binary) -> Value:
        if left is UNKNOWN:
            return UNKNOWN
        if left is not None and not isinstance(left, Absent):
            return left
        right = self.value(node.right)
        if isinstance(left, Absent) and isinstance(right, Absent):
            return Absent((*left.keys, *right.keys))
        return right

    def _logical(self, sign: str, left: Value, node: syntax.Binary) -> Value:
        settles = sign == "or"
        if left is settles:
            return settles
        right = self.value(node.right)
        if right is settles:
            return settles
        for value in (left, right):
            if value is UNKNOWN or isinstance(value, Absent):
                return value
            if not isinstance(value, bool):
                message = f"`{sign}` expects truth values, got `{shown(value)}`"
                raise fail("CKE232", node.span, message)
        return not settles

    def _contains(self, left: Value, right: Value, node: syntax.Binary) -> bool:
        if not isinstance(right, list):
            raise fail("CKE232", node.span, f"`in` expects a list, got `{shown(right)}`")
        return left in right

    def _arithmetic(self, sign: str, left: Value, right: Value, node: syntax.Binary) -> Value:
        if not is_number(left) or not is_number(right):
            message = f"`{sign}` expects numbers, got `{shown(left)}` and `{shown(right)}`"
            raise fail("CKE232", node.operator_span, message)
        if sign in ORDER:
            return ORDER[sign](left, right)
        if sign == "**" and abs(right) > EXPONENT_LIMIT:
            raise fail("CKE233", node.span, f"the exponent {right} is too large")
        try:
            result = ARITHMETIC[sign](left, right)
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            raise fail("CKE233", node.span, f"{left} {sign} {right}: {error}") from None
        return _finite(result, node.span)

    def _conditional(self, node: syntax.Conditional) -> Value:
        condition = self.value(node.condition)
        if condition is UNKNOWN or isinstance(condition, Absent):
            return condition
        if not isinstance(condition, bool):
            message = f"`if` expects a truth value, got `{shown(condition)}`"
            raise fail("CKE232", node.condition.span, message)
        return self.value(node.value if condition else node.otherwise)


def _number(name: str, values: list[Value], node: syntax.Call) -> Value:
    function, least = NUMERIC[name]
    if len(values) < least or not all(map(is_number, values)):
        got = ", ".join(map(shown, values)) or "nothing"
        raise fail("CKE234", node.span, f"`{name}` expects numbers, got `{got}`")
    if least == 1 and len(values) > 1:
        raise fail("CKE234", node.span, f"`{name}` expects one number, got {len(values)}")
    try:
        return _finite(function(*values), node.span)
    except (ValueError, OverflowError) as error:
        raise fail("CKE233", node.span, f"`{name}`: {error}") from None


def _finite(value: Value, span: Span) -> Value:
    if isinstance(value, complex) or not math.isfinite(value) or abs(value) > 1e300:
        raise fail("CKE233", span, "the result is not a finite number")
    return value


def _or_none(value: Value) -> Value:
    """A comparison takes an absent key as `none`."""
    return None if isinstance(value, Absent) else value


def _whole(items: list[Value]) -> Value:
    for item in items:
        if item is UNKNOWN or isinstance(item, Absent):
            return item
    return items


def shown(value: Value) -> str:
    """Return a value as the language spells it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Absent):
        return "nothing"
    if isinstance(value, dict | list) and len(str(value)) > 40:
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    return str(value)
