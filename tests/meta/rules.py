"""The rules that a module states, and how each is broken; used by `tests.meta.mutation`.

A rule is a condition, a row of a table, a bound, a constraint of a field, a step that is called
for its effect, or a sum. `broken` gives the module with one of them broken.
"""

import ast
from collections.abc import Callable, Iterator

import msgspec

BOUNDARIES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
SUMS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
Break = Callable[[], None]


class Rule(msgspec.Struct, frozen=True):
    """One way to break a module; `lines` are those that a test must run to notice it.

    `function` is the outermost function that holds it, None for what runs at import; `scope` are
    its first and last line.
    """

    index: int
    line: int
    lines: tuple[int, ...]
    function: str | None
    scope: tuple[int, int]
    how: str
    text: str


def rules(source: str) -> list[Rule]:
    """Every rule of a module, in one order that depends on the source alone."""
    return [rule for rule, _ in _rules(ast.parse(source))]


def broken(source: str, index: int) -> ast.Module:
    """The module with one rule broken."""
    tree = ast.parse(source)
    next(change for rule, change in _rules(tree) if rule.index == index)()
    return ast.fix_missing_locations(tree)


def _rules(tree: ast.Module) -> Iterator[tuple[Rule, Break]]:
    found = list(_walk(tree, (None, (0, 0)), []))
    for index, (node, lines, (function, scope), how, change) in enumerate(found):
        text = " ".join(ast.unparse(node).split("\n")[0].split())[:100]
        line = getattr(node, "lineno", lines[0])
        yield Rule(index, line, lines, function, scope, how, text), change


Place = tuple[str | None, tuple[int, int]]
Found = tuple[ast.AST, tuple[int, ...], Place, str, Break]


def _walk(
    node: ast.AST, within: Place, path: list[str], around: Place | None = None
) -> Iterator[Found]:
    """Walk what runs `within` a place; the signature of a function runs `around` it."""
    body = getattr(node, "body", ())
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert | ast.Raise):
            continue
        function = within if around is None or child in body else around
        inner, below = function, path
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            below = [*path, child.name]
            if isinstance(child, ast.FunctionDef) and function[0] is None:
                inner = ".".join(below), (child.lineno, child.end_lineno or 0)
        yield from _of(child, inner)
        yield from _walk(child, inner, below, function if inner is not function else None)


def _of(node: ast.AST, function: Place) -> Iterator[Found]:
    for lines, how, change in _breaks(node):
        yield node, lines, function, how, change


def _breaks(node: ast.AST) -> Iterator[tuple[tuple[int, ...], str, Break]]:
    here = (getattr(node, "lineno", 0),)
    match node:
        case ast.If() if not _is_for_types(node):
            yield (node.body[0].lineno,), "never", _set(node, "test", ast.Constant(False))
            yield here, "always", _set(node, "test", ast.Constant(True))
        case ast.IfExp() | ast.While():
            yield here, "never", _set(node, "test", ast.Constant(False))
            if isinstance(node, ast.IfExp):
                yield here, "always", _set(node, "test", ast.Constant(True))
        case ast.comprehension() if node.ifs:
            yield (node.target.lineno,), "unfiltered", _set(node, "ifs", [])
        case ast.BoolOp():
            for at in range(len(node.values)):
                yield here, f"without part {at + 1}", _neutral(node, at)
        case ast.Compare() if len(node.ops) == 1:
            new = {**BOUNDARIES, **OPPOSITES}.get(type(node.ops[0]))
            if new is not None:
                yield here, new.__name__, _set(node, "ops", [new()])
        case ast.BinOp() if type(node.op) in SUMS:
            yield here, SUMS[type(node.op)].__name__, _set(node, "op", SUMS[type(node.op)]())
        case ast.Expr(value=ast.Call()):
            yield here, "not done", _set(node, "value", ast.Constant(None))
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) | ast.Set():
            if len(node.elts) > 1 and all(map(_is_row, node.elts)):
                for at, row in enumerate(node.elts):
                    yield (row.lineno,), f"without row {at + 1}", _without(node.elts, at)
        case ast.Dict() if len(node.keys) > 1:
            for at, key in enumerate(node.keys):
                if key is not None:
                    yield (key.lineno,), f"without `{ast.unparse(key)}`", _without_key(node, at)
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
            yield from _constant(node)
        case ast.Call(func=ast.Name(id="Meta")):
            for at, item in enumerate(node.keywords):
                yield here, f"without {item.arg}", _without(node.keywords, at)
        case ast.ClassDef():
            for at, item in enumerate(node.keywords):
                if item.arg == "forbid_unknown_fields":
                    yield here, f"without {item.arg}", _without(node.keywords, at)


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_row(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple | ast.Constant)


def _constant(node: ast.Assign) -> Iterator[tuple[tuple[int, ...], str, Break]]:
    value = node.value
    if isinstance(value, ast.BinOp) or (
        isinstance(value, ast.Constant) and isinstance(value.value, int)
    ):
        more = ast.BinOp(value, ast.Add(), ast.Constant(1))
        yield (node.lineno,), "one more", _set(node, "value", more)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield (node.lineno,), "other text", _set(node, "value", ast.Constant(value.value + "x"))


def _set(node: ast.AST, field: str, value: object) -> Break:
    return lambda: setattr(node, field, value)


def _neutral(node: ast.BoolOp, at: int) -> Break:
    return lambda: node.values.__setitem__(at, ast.Constant(isinstance(node.op, ast.And)))


def _without(items: list, at: int) -> Break:
    return lambda: items.__delitem__(at)


def _without_key(node: ast.Dict, at: int) -> Break:
    def change() -> None:
        del node.keys[at], node.values[at]

    return change
