"""Static arithmetic of expressions in blocks: numbers, alternatives, conditions.

A value that no config has settled is UNKNOWN and stays so, unless the result does not depend on
it. Non-goal: tensors.
"""

import math
import operator
from collections.abc import Callable, Sequence

from cke.dsl.evaluate import UNKNOWN
from cke.schemas.ir import Value


class StaticError(Exception):
    """Operands that an operator of the language does not take; the caller adds the span."""


_ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_ORDER: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "log": math.log,
    "sqrt": math.sqrt,
    "min": min,
    "max": max,
}


def binary(sign: str, left: Value, right: Value) -> Value:
    """Return `left sign right`; `and`, `or` and `??` are resolved when one side settles them."""
    if sign in ("and", "or"):
        return _logical(sign, left, right)
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if sign == "??":
        return right if left is None else left
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    if sign == "in":
        return left in right
    return _numeric(sign, left, right)


def unary(sign: str, value: Value) -> Value:
    """Return `not value` or `-value`."""
    if value is UNKNOWN:
        return UNKNOWN
    if sign == "not":
        return not value
    if not _is_number(value):
        raise StaticError(f"`-` expects a number, got `{value}`")
    return -value


def call(name: str, values: Sequence[Value]) -> Value:
    """Return the value of a config function."""
    if any(value is UNKNOWN for value in values):
        return UNKNOWN
    if not all(map(_is_number, values)):
        raise StaticError(f"`{name}` expects numbers, got {', '.join(map(str, values))}")
    return FUNCTIONS[name](*values)


def _logical(sign: str, left: Value, right: Value) -> Value:
    settles = sign == "or"
    if settles in (left, right):
        return settles
    return UNKNOWN if UNKNOWN in (left, right) else not settles


def _numeric(sign: str, left: Value, right: Value) -> Value:
    if not _is_number(left) or not _is_number(right):
        raise StaticError(f"`{sign}` expects numbers, got `{left}` and `{right}`")
    if sign in _ORDER:
        return _ORDER[sign](left, right)
    if sign in ("/", "//", "%") and right == 0:
        raise StaticError(f"`{sign}` divides by zero")
    return _ARITHMETIC[sign](left, right)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
