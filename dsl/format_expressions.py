"""Expressions, types and shapes as canonical text, with the fewest brackets that keep the tree."""

from collections.abc import Iterable

from cke.dsl import syntax

WIDTH = 120
LEVELS = {
    "??": 1,
    "or": 2,
    "and": 3,
    "==": 5,
    "!=": 5,
    "<=": 5,
    ">=": 5,
    "<": 5,
    ">": 5,
    "in": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    "//": 7,
    "%": 7,
    "**": 9,
}
NOT, SIGN, POWER, POSTFIX, ATOM = 4, 8, 9, 10, 11


def expression(node: syntax.Expression, level: int = 0) -> str:
    """Return the text; in brackets when it binds less tightly than `level`."""
    text, own = _text(node)
    return f"({text})" if own < level else text


def _text(node: syntax.Expression) -> tuple[str, int]:
    match node:
        case syntax.Name():
            return node.name, ATOM
        case syntax.Root():
            return node.format, ATOM
        case syntax.Literal():
            return node.text, ATOM
        case syntax.ListOf():
            return f"[{', '.join(map(expression, node.items))}]", ATOM
        case syntax.Table():
            return "{" + ", ".join(map(pair, node.pairs)) + "}", ATOM
        case syntax.Get():
            return f"{expression(node.value, POSTFIX)}.{node.name}", POSTFIX
        case syntax.Index():
            return f"{expression(node.value, POSTFIX)}[{expression(node.index)}]", POSTFIX
        case syntax.Call():
            return f"{expression(node.function, POSTFIX)}({arguments(node.arguments)})", POSTFIX
        case syntax.Via():
            mapping = expression(node.mapping)
            return f"{expression(node.value, POSTFIX)} via {mapping}", POSTFIX
        case syntax.Unary():
            return _unary(node)
        case syntax.Binary():
            return _binary(node), LEVELS[node.operator]
        case syntax.Conditional():
            value, condition = expression(node.value, 2), expression(node.condition, 2)
            return f"{value} if {condition} else {expression(node.otherwise)}", 0


def _unary(node: syntax.Unary) -> tuple[str, int]:
    if node.operator == "-":
        return f"-{expression(node.operand, SIGN)}", SIGN
    level = ATOM if isinstance(node.operand, syntax.Binary) else NOT
    return f"not {expression(node.operand, level)}", NOT


def _binary(node: syntax.Binary) -> str:
    left, right = sides(node.operator)
    if node.operator == "??" and not _is_fallback(node.left):
        left = right
    return f"{expression(node.left, left)} {node.operator} {expression(node.right, right)}"


def sides(sign: str) -> tuple[int, int]:
    """Return the levels that the two sides of an operator must have.

    Beside `??` everything but arithmetic stands in brackets: it binds less than readers think.
    """
    level = LEVELS[sign]
    if sign == "??":
        return level, LEVELS["+"]
    if level == POWER:
        return POSTFIX, SIGN
    return (level + 1 if level == LEVELS["=="] else level), level + 1


def _is_fallback(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Binary) and node.operator == "??"


def pair(node: syntax.Pair) -> str:
    """Return `key: value`."""
    key = f'"{node.key}"' if node.quoted else node.key
    return f"{key}: {expression(node.value)}"


def argument(node: syntax.Argument) -> str:
    """Return `value` or `name: value`."""
    return expression(node.value) if node.name is None else f"{node.name}: {expression(node.value)}"


def arguments(nodes: Iterable[syntax.Argument]) -> str:
    """Return the arguments without their brackets."""
    return ", ".join(map(argument, nodes))


def shape(node: syntax.Shape) -> str:
    """Return `[B, T]` or `[D -> H E]`."""
    result = "" if node.result is None else f" -> {_dimensions(node.result)}"
    return f"[{_dimensions(node.axes)}{result}]"


def _dimensions(nodes: Iterable[syntax.Dimension]) -> str:
    return ", ".join(" + ".join(map(product, node.terms)) for node in nodes)


def product(node: syntax.Product) -> str:
    """Return axes side by side."""
    return " ".join(map(_axis, node.atoms))


def _axis(node: syntax.AxisAtom) -> str:
    match node:
        case syntax.AxisName():
            return node.name
        case syntax.AxisFraction():
            return f"{node.name}/{node.divisor}"
        case syntax.AxisLiteral():
            return str(node.size)
        case syntax.AxisPairs():
            return f"pairs({node.name})"
        case syntax.AxisGroup():
            return f"({' + '.join(map(product, node.terms))})"


def type_(node: syntax.Type) -> str:
    """Return a declared type."""
    return " | ".join(map(_atom, node.alternatives))


def _atom(node: syntax.TypeAtom) -> str:
    axes = "" if node.shape is None else shape(node.shape)
    return f"{node.name or ''}{axes}{'?' if node.optional else ''}"


def wrapped(node: syntax.Expression, used: int, indent: str) -> str:
    """Return the text over several lines when one line is longer than WIDTH.

    `used` is the width of what stands before it on its first line.
    """
    flat = expression(node)
    if used + len(flat) <= WIDTH:
        return flat
    inner = indent + "  "
    match node:
        case syntax.Call():
            head = f"{expression(node.function, POSTFIX)}("
            items = [argument(item) for item in node.arguments]
            return head + _filled(items, used + len(head), inner) + ")"
        case syntax.Conditional():
            return f"(\n{inner}{_conditional(node, inner)})"
        case syntax.Binary() if node.operator in ("??", "and", "or"):
            _, right = sides(node.operator)
            pieces = [expression(item, right) for item in _chain(node, node.operator)]
            return f"(\n{inner}" + f"\n{inner}{node.operator} ".join(pieces) + ")"
    return flat


def _conditional(node: syntax.Conditional, indent: str) -> str:
    lines: list[str] = []
    current: syntax.Expression = node
    while isinstance(current, syntax.Conditional):
        condition = expression(current.condition, 2)
        value = expression(current.value, 2)
        if len(indent) + len(value) + len(condition) > WIDTH and isinstance(
            current.value, syntax.Call
        ):
            value = wrapped(current.value, len(indent), indent)
        lines.append(f"{value} if {condition} else")
        current = current.otherwise
    lines.append(expression(current))
    return f"\n{indent}".join(lines)


def _chain(node: syntax.Expression, sign: str) -> list[syntax.Expression]:
    items: list[syntax.Expression] = []
    while isinstance(node, syntax.Binary) and node.operator == sign:
        items.insert(0, node.right)
        node = node.left
    return [node, *items]


def _filled(items: list[str], used: int, indent: str) -> str:
    lines, width = [""], used
    for place, item in enumerate(items):
        text = item + (", " if place + 1 < len(items) else "")
        if lines[-1] and width + len(text) > WIDTH:
            lines.append("")
            width = len(indent)
        lines[-1] += text
        width += len(text)
    return f"\n{indent}".join(line.rstrip() for line in lines)
