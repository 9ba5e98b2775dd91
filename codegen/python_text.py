"""Python text the way `ruff format` writes it, for the few forms that generated code uses.

Goal: what is emitted is a fixed point of the formatter, without running it. Non-goal: any other
Python.
"""

from collections.abc import Sequence

from cke.schemas.ir import Value

WIDTH = 100


def literal(value: Value) -> str:
    """Return a constant as Python source; lists are written as tuples."""
    if isinstance(value, dict):
        return "{" + ", ".join(_entries(value)) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return string(value)
    return repr(value)


def string(text: str) -> str:
    """Return a string literal, in double quotes unless that needs more escapes."""
    quoted = repr(text)
    if quoted.startswith("'") and '"' not in text:
        return f'"{quoted[1:-1]}"'
    return quoted


def bracketed(
    head: str, items: Sequence[str | tuple[str, Value]], tail: str, indent: int, comment: str = ""
) -> list[str]:
    """Return `head(items)tail` on one line, or broken as the formatter breaks a call.

    `head` ends with the opening bracket and `tail` starts with the closing one. An item is text,
    or a keyword with its value.
    """
    pad = " " * indent
    texts = [item if isinstance(item, str) else f"{item[0]}={literal(item[1])}" for item in items]
    flat = f"{pad}{head}{', '.join(texts)}{tail}{comment}"
    if len(flat) <= WIDTH or not texts:
        return [flat]
    inner = f"{pad}    {', '.join(texts)}"
    if len(inner) <= WIDTH:
        return [f"{pad}{head}", inner, f"{pad}{tail}{comment}"]
    lines = [line for item in items for line in _broken_item(item, indent + 4)]
    return [f"{pad}{head}", *lines, f"{pad}{tail}{comment}"]


def collection(head: str, items: Sequence[str], tail: str, indent: int) -> list[str]:
    """Return a literal or a `with` list on one line, or broken with one item per line."""
    pad = " " * indent
    flat = f"{pad}{head}{', '.join(items)}{tail}"
    if len(flat) <= WIDTH:
        return [flat]
    return [f"{pad}{head}", *(f"{pad}    {item}," for item in items), f"{pad}{tail}"]


def _broken_item(item: str | tuple[str, Value], indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(item, str):
        return [f"{pad}{item},"]
    flat = f"{pad}{item[0]}={literal(item[1])},"
    if len(flat) <= WIDTH:
        return [flat]
    if isinstance(item[1], dict):
        return _with_comma(collection(f"{item[0]}={{", _entries(item[1]), "}", indent))
    if isinstance(item[1], list | tuple):
        return _with_comma(collection(f"{item[0]}=(", [literal(v) for v in item[1]], ")", indent))
    return [flat]


def _with_comma(lines: list[str]) -> list[str]:
    return [*lines[:-1], f"{lines[-1]},"]


def _entries(value: dict[str, Value]) -> list[str]:
    return [f"{string(key)}: {literal(entry)}" for key, entry in value.items()]
