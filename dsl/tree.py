"""From lark's tree of one item to syntax nodes, without recursion: depth of text is no danger.

One builder per grammar rule; each gets the span and the children that the grammar keeps.
"""

from collections.abc import Callable
from math import isinf
from typing import Any

from lark import Token, Tree

from cke.dsl import syntax as s
from cke.errors import Span

Children = list[Any]
DIGITS = 18


class TooDeep(Exception):
    """Text nests deeper than any circuit needs; `span` is the outermost construct."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


class NumberTooLarge(Exception):
    """A number that no circuit needs, and that Python may not even read."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


class TreeBuilder:
    """Builds the nodes of one item of `file`, whose first line has number `first_line`."""

    def __init__(self, file: str, first_line: int, depth_limit: int) -> None:
        self.file = file
        self.offset = first_line - 1
        self.depth_limit = depth_limit

    def build(self, tree: "Tree[Any]") -> s.Item:
        """Return the item; TooDeep when it nests deeper than the limit."""
        built: dict[int, tuple[Any, int]] = {}
        for subtree in tree.iter_subtrees():
            children: Children = []
            depth = 0
            for child in subtree.children:
                if isinstance(child, Tree):
                    node, below = built[id(child)]
                    depth = max(depth, below)
                    children.append(node)
                else:
                    children.append(self._token(child))
            if depth >= self.depth_limit:
                raise TooDeep(self._span(subtree.meta))
            built[id(subtree)] = self._node(subtree, children), depth + 1
        item: s.Item = built[id(tree)][0]
        return item

    def _node(self, tree: "Tree[Any]", children: Children) -> Any:
        rule = str(tree.data)
        if tree.meta.empty:
            return BUILDERS[rule](s.NOWHERE, children)
        return BUILDERS[rule](self._span(tree.meta), children)

    def _token(self, token: Token | None) -> s.Identifier | None:
        return None if token is None else s.Identifier(name=str(token), span=self._span(token))

    def _span(self, at: Any) -> Span:
        return Span(
            self.file, at.line + self.offset, at.column, at.end_line + self.offset, at.end_column
        )


def _join(first: Span, last: Span) -> Span:
    return Span(first.file, first.line, first.column, last.end_line, last.end_column)


def _text(token: s.Identifier) -> str:
    return token.name[1:-1]


def _optional_text(token: s.Identifier | None) -> str | None:
    return None if token is None else _text(token)


def _integer(token: s.Identifier | None) -> int | None:
    return None if token is None else _number(token)


def _number(token: s.Identifier) -> int:
    if len(token.name) > DIGITS:
        raise NumberTooLarge(token.span)
    return int(token.name)


def _texts(tokens: Children) -> tuple[s.Text, ...]:
    return tuple(s.Text(value=_text(token), span=token.span) for token in tokens)


def _start(span: Span, c: Children) -> Any:
    return c[0]


def _sequence(span: Span, c: Children) -> tuple[Any, ...]:
    return tuple(c)


def _path(span: Span, c: Children) -> s.Identifier:
    return s.Identifier(name=".".join(token.name for token in c), span=span)


def _circuit(span: Span, c: Children) -> s.Circuit:
    parent, version = c[2] or (None, None)
    return s.Circuit(
        name=c[0].name,
        version=_number(c[1]),
        parent=parent,
        parent_version=version,
        title=_optional_text(c[3]),
        span=span,
    )


def _parent(span: Span, c: Children) -> tuple[s.Identifier, int]:
    return c[0], _number(c[1])


def _use(span: Span, c: Children) -> s.Use:
    return s.Use(path=c[0].name, version=_integer(c[1]), span=span)


def _model(span: Span, c: Children) -> s.Model:
    return s.Model(block=c[0], span=span)


def _matches(span: Span, c: Children) -> s.Match:
    return s.Match(rows=tuple(c), span=span)


def _match_hf(span: Span, c: Children) -> s.MatchRow:
    under = c[1].name if c[1] else None
    return s.MatchRow(format="hf", names=c[0], under=under, condition=c[2], span=span)


def _match_gguf(span: Span, c: Children) -> s.MatchRow:
    return s.MatchRow(format="gguf", names=c[0], under=None, condition=c[1], span=span)


def _ignore_tensors(span: Span, c: Children) -> s.IgnoreTensors:
    return s.IgnoreTensors(patterns=_texts(c), span=span)


def _config(span: Span, c: Children) -> s.Config:
    name = c[0].name if c[0] else None
    return s.Config(name=name, parents=c[1] or (), rows=tuple(c[2:]), span=span)


def _fragments(span: Span, c: Children) -> Any:
    return c[0]


def _bind(span: Span, c: Children) -> s.Bind:
    return s.Bind(
        name=c[0].name,
        name_span=c[0].span,
        type=c[1],
        value=c[2],
        meaning=_optional_text(c[3]) if len(c) > 3 else None,
        span=span,
    )


def _rebind(span: Span, c: Children) -> s.Rebind:
    return s.Rebind(name=c[0].name, name_span=c[0].span, value=c[1], span=span)


def _ignore(span: Span, c: Children) -> s.Ignore:
    return s.Ignore(names=tuple(c), span=span)


def _require(span: Span, c: Children) -> s.Require:
    return s.Require(condition=c[0], message=_text(c[1]), span=span)


def _schedule(span: Span, c: Children) -> s.Schedule:
    return s.Schedule(index=c[0], axis=c[1], rows=tuple(c[2:]), span=span)


def _mapdef(span: Span, c: Children) -> s.MapTable:
    return s.MapTable(name=c[0].name, pairs=tuple(c[1:]), span=span)


def _map_pair(span: Span, c: Children) -> s.Pair:
    quoted = c[0].name.startswith('"')
    return s.Pair(key=_text(c[0]) if quoted else c[0].name, quoted=quoted, value=c[1], span=span)


def _type(span: Span, c: Children) -> s.Type:
    return s.Type(alternatives=tuple(c), span=span)


def _named(span: Span, c: Children) -> s.TypeAtom:
    return s.TypeAtom(name=c[0].name, span=span)


def _optional_named(span: Span, c: Children) -> s.TypeAtom:
    return s.TypeAtom(name=c[0].name, optional=True, span=span)


def _array(span: Span, c: Children) -> s.TypeAtom:
    return s.TypeAtom(name=c[0].name, shape=c[1], optional=c[2] is not None, span=span)


def _float_array(span: Span, c: Children) -> s.TypeAtom:
    return s.TypeAtom(name=None, shape=c[0], optional=c[1] is not None, span=span)


def _shape(span: Span, c: Children) -> s.Shape:
    return s.Shape(axes=c[0], result=c[1], span=span)


def _axis_sum(span: Span, c: Children) -> s.Dimension:
    return s.Dimension(terms=tuple(c), span=span)


def _axis_prod(span: Span, c: Children) -> s.Product:
    return s.Product(atoms=tuple(c), span=span)


def _axis(span: Span, c: Children) -> s.AxisName:
    return s.AxisName(name=c[0].name, span=span)


def _axis_div(span: Span, c: Children) -> s.AxisFraction:
    divisor = _number(c[1]) if c[1].name.isdigit() else c[1].name
    return s.AxisFraction(name=c[0].name, divisor=divisor, span=span)


def _axis_int(span: Span, c: Children) -> s.AxisLiteral:
    return s.AxisLiteral(size=_number(c[0]), span=span)


def _axis_group(span: Span, c: Children) -> s.AxisGroup:
    return s.AxisGroup(terms=c[0].terms, span=span)


def _axis_pairs(span: Span, c: Children) -> s.AxisPairs:
    return s.AxisPairs(name=c[0].name, span=span)


class _Section:
    """A section of a block, until the block takes it apart."""

    def __init__(self, name: str, span: Span, rows: Children) -> None:
        self.name, self.span, self.rows = name, span, tuple(rows)


class SectionTwice(Exception):
    """A block has two sections of one name."""

    def __init__(self, name: str, span: Span) -> None:
        super().__init__()
        self.name, self.span = name, span


def _section(name: str) -> Callable[[Span, Children], _Section]:
    return lambda span, c: _Section(name, span, c)


def _block(span: Span, c: Children) -> s.Block:
    name, parameters, results = c[:3]
    sections: dict[str, tuple[Any, ...]] = {}
    for child in c[3:]:
        if isinstance(child, _Section):
            if child.name in sections:
                raise SectionTwice(child.name, child.span)
            sections[child.name] = child.rows
    return s.Block(
        name=name.name,
        parameters=parameters,
        results=results,
        given=sections.get("given", ()),
        renames=sections.get("points", ()),
        parts=sections.get("parts", ()),
        state=sections.get("state", ()),
        body=tuple(child for child in c[3:] if not isinstance(child, _Section)),
        signature=_join(span, results[-1].span),
        span=span,
    )


def _items(span: Span, c: Children) -> tuple[Any, ...]:
    return tuple(child for child in c if child is not None)


def _param(span: Span, c: Children) -> s.Parameter:
    return s.Parameter(name=c[0].name, type=c[1], point=c[2], span=span)


def _given_row(span: Span, c: Children) -> s.Given:
    return s.Given(names=c[0], type=c[1], default=c[2], span=span)


def _rename(span: Span, c: Children) -> s.Rename:
    return s.Rename(axis=c[0], axes=c[1], span=span)


class ConditionTwice(Exception):
    """A part has more than one `when`."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span


class _End:
    """The rest of a part row: clauses of further lines, and the condition."""

    def __init__(self, clauses: Children, conditions: list[s.Expression]) -> None:
        if len(conditions) > 1:
            raise ConditionTwice(conditions[1].span)
        self.clauses = tuple(clauses)
        self.condition = conditions[0] if conditions else None


def _part_end(span: Span, c: Children) -> _End:
    conditions = [] if c[0] is None else [c[0]]
    clauses: Children = []
    for line in c[1:]:
        for child in line:
            (clauses if isinstance(child, s.Source | s.Tied) else conditions).append(child)
    return _End(clauses, conditions)


def _part_name(span: Span, c: Children) -> tuple[s.Identifier, s.Identifier | None]:
    return c[0], c[1]


def _part(span: Span, c: Children) -> s.Part:
    (name, axis), choices, end = c[0], c[1], c[-1]
    return s.Part(
        name=name.name,
        name_span=name.span,
        axis=axis,
        choices=choices,
        clauses=(*c[2:-1], *end.clauses),
        condition=end.condition,
        span=span,
    )


def _sources(span: Span, c: Children) -> s.Sources:
    end = c[-1]
    return s.Sources(
        names=c[0], clauses=(*c[1:-1], *end.clauses), condition=end.condition, span=span
    )


def _constructors(span: Span, c: Children) -> tuple[s.Choice, ...]:
    pairs = [(c[i], c[i + 1]) for i in range(0, len(c) - 1, 2)]
    return tuple(
        s.Choice(constructor=made, condition=condition, span=made.span)
        for made, condition in [*pairs, (c[-1], None)]
    )


def _constructor(span: Span, c: Children) -> s.Constructor:
    return s.Constructor(name=c[0].name, shape=c[1], arguments=c[2] or (), span=span)


def _source(span: Span, c: Children) -> tuple[Any, ...]:
    return _texts(c[:-2]), c[-2], c[-1] or ()


def _source_clause(format_: str) -> Callable[[Span, Children], s.Source]:
    def build(span: Span, c: Children) -> s.Source:
        names, layout, transforms = c[0]
        return s.Source(
            format=format_,
            names=names,
            layout=layout,
            transforms=transforms,
            condition=c[1],
            span=span,
        )

    return build


def _tied(span: Span, c: Children) -> s.Tied:
    return s.Tied(part=c[0], condition=c[1], span=span)


def _transform(span: Span, c: Children) -> s.Transform:
    return s.Transform(name=c[0].name, arguments=c[1] or (), span=span)


def _state_row(span: Span, c: Children) -> s.StateRow:
    return s.StateRow(name=c[0].name, kind=c[1], arguments=c[2] or (), condition=c[3], span=span)


def _assign(span: Span, c: Children) -> s.Assign:
    return s.Assign(targets=c[0], value=c[1], points=c[2] or (), span=span)


def _ret(span: Span, c: Children) -> s.Return:
    return s.Return(values=tuple(c[:-1]), points=c[-1] or (), span=span)


def _point(span: Span, c: Children) -> s.Point:
    return s.Point(name=c[0].name, version=_integer(c[1]), span=span)


def _branch(span: Span, c: Children) -> s.Branch:
    return s.Branch(condition=c[0], body=c[1], span=span)


def _if_stmt(span: Span, c: Children) -> s.If:
    first = s.Branch(condition=c[0], body=c[1], span=_join(span, c[1][-1].span))
    return s.If(branches=(first, *c[2:-1]), otherwise=c[-1], span=span)


def _else_part(span: Span, c: Children) -> Any:
    return c[0]


def _for_stmt(span: Span, c: Children) -> s.For:
    return s.For(index=c[0], axis=c[1], body=c[2], span=span)


def _numerics(span: Span, c: Children) -> s.Numerics:
    name = c[0].name if c[0] else None
    return s.Numerics(name=name, parents=c[1] or (), rows=tuple(c[2:]), span=span)


def _numerics_row(span: Span, c: Children) -> s.NumericsRow:
    return s.NumericsRow(
        selectors=tuple(child for child in c if isinstance(child, s.Text)),
        terms=tuple(child for child in c if isinstance(child, s.Term)),
        span=span,
    )


def _selector(span: Span, c: Children) -> s.Text:
    return s.Text(value=c[0].name, span=span)


def _any(span: Span, c: Children) -> s.Text:
    return s.Text(value="*", span=span)


def _contract(span: Span, c: Children) -> s.Term:
    return s.Term(section=c[0].name, arguments=c[1], span=span)


def _taxonomy(span: Span, c: Children) -> s.Taxonomy:
    parent, version = c[2] or (None, None)
    return s.Taxonomy(
        name=c[0].name,
        version=_number(c[1]),
        parent=parent,
        parent_version=version,
        rows=tuple(c[3:]),
        span=span,
    )


def _tax_row(span: Span, c: Children) -> s.TaxonomyRow:
    return s.TaxonomyRow(
        name=c[0].name,
        version=_integer(c[1]),
        shape=c[2],
        title=_optional_text(c[3]),
        span=span,
    )


def _conditional(span: Span, c: Children) -> s.Conditional:
    return s.Conditional(value=c[0], condition=c[1], otherwise=c[2], span=span)


def _binary(span: Span, c: Children) -> s.Binary:
    return s.Binary(operator=c[1].name, left=c[0], right=c[2], operator_span=c[1].span, span=span)


def _unary(span: Span, c: Children) -> s.Unary:
    return s.Unary(operator=c[0].name, operand=c[1], span=span)


def _get(span: Span, c: Children) -> s.Get:
    return s.Get(value=c[0], name=c[1].name, span=span)


def _index(span: Span, c: Children) -> s.Index:
    return s.Index(value=c[0], index=c[1], span=span)


def _call(span: Span, c: Children) -> s.Call:
    return s.Call(function=c[0], arguments=c[1] or (), span=span)


def _via(span: Span, c: Children) -> s.Via:
    return s.Via(value=c[0], mapping=c[1], span=span)


def _positional(span: Span, c: Children) -> s.Argument:
    return s.Argument(name=None, value=c[0], span=span)


def _keyword(span: Span, c: Children) -> s.Argument:
    return s.Argument(name=c[0].name, value=c[1], span=span)


def _name(span: Span, c: Children) -> s.Name:
    return s.Name(name=c[0].name, span=span)


def _root(format_: str) -> Callable[[Span, Children], s.Root]:
    return lambda span, c: s.Root(format=format_, span=span)


def _constant(value: bool | None, text: str) -> Callable[[Span, Children], s.Literal]:
    return lambda span, c: s.Literal(value=value, text=text, span=span)


def _int(span: Span, c: Children) -> s.Literal:
    return s.Literal(value=_number(c[0]), text=c[0].name, span=span)


def _float(span: Span, c: Children) -> s.Literal:
    value = float(c[0].name)
    if isinf(value):
        raise NumberTooLarge(span)
    return s.Literal(value=value, text=c[0].name, span=span)


def _string(span: Span, c: Children) -> s.Literal:
    return s.Literal(value=_text(c[0]), text=c[0].name, span=span)


def _list(span: Span, c: Children) -> s.ListOf:
    return s.ListOf(items=c[0] or (), span=span)


def _table(span: Span, c: Children) -> s.Table:
    return s.Table(pairs=c[0] or (), span=span)


BUILDERS: dict[str, Callable[[Span, Children], Any]] = {
    "start": _start,
    "path": _path,
    "circuit": _circuit,
    "parent": _parent,
    "use": _use,
    "model": _model,
    "matches": _matches,
    "match_hf": _match_hf,
    "match_gguf": _match_gguf,
    "name_list": _sequence,
    "ignore_tensors": _ignore_tensors,
    "config": _config,
    "fragments": _fragments,
    "bind": _bind,
    "schedule_bind": _bind,
    "rebind": _rebind,
    "ignore": _ignore,
    "require": _require,
    "schedule": _schedule,
    "mapdef": _mapdef,
    "map_pair": _map_pair,
    "type": _type,
    "named": _named,
    "optional_named": _optional_named,
    "array": _array,
    "float_array": _float_array,
    "shape": _shape,
    "contracted": _fragments,
    "axes": _sequence,
    "axis_sum": _axis_sum,
    "axis_prod": _axis_prod,
    "axis": _axis,
    "axis_div": _axis_div,
    "axis_int": _axis_int,
    "axis_group": _axis_group,
    "axis_pairs": _axis_pairs,
    "block": _block,
    "params": _items,
    "param": _param,
    "results": _sequence,
    "given": _section("given"),
    "given_row": _given_row,
    "renames": _section("points"),
    "rename": _rename,
    "parts": _section("parts"),
    "parts_of": lambda span, c: s.PartsOf(block=c[0], rows=tuple(c[1:]), span=span),
    "part": _part,
    "sources": _sources,
    "part_name": _part_name,
    "constructors": _constructors,
    "constructor": _constructor,
    "part_end": _part_end,
    "clause_line": _items,
    "when_line": _items,
    "hf_source": _source_clause("hf"),
    "gguf_source": _source_clause("gguf"),
    "tied": _tied,
    "source": _source,
    "transforms": _sequence,
    "transform": _transform,
    "state": _section("state"),
    "state_row": _state_row,
    "assign": _assign,
    "ret": _ret,
    "points": _sequence,
    "point": _point,
    "if_stmt": _if_stmt,
    "elif_part": _branch,
    "else_part": _else_part,
    "for_stmt": _for_stmt,
    "suite": _sequence,
    "numerics": _numerics,
    "numerics_row": _numerics_row,
    "selector": _selector,
    "any": _any,
    "contract": _contract,
    "taxonomy": _taxonomy,
    "tax_row": _tax_row,
    "conditional": _conditional,
    "binary": _binary,
    "unary": _unary,
    "get": _get,
    "index": _index,
    "call": _call,
    "via": _via,
    "positional": _positional,
    "keyword": _keyword,
    "args": _items,
    "items": _items,
    "pairs": _items,
    "name": _name,
    "hf": _root("hf"),
    "gguf": _root("gguf"),
    "int": _int,
    "float": _float,
    "string": _string,
    "true": _constant(True, "true"),
    "false": _constant(False, "false"),
    "none": _constant(None, "none"),
    "list": _list,
    "table": _table,
}
