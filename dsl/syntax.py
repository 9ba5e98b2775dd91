"""The syntax tree: what was written, with the span of every construct.

Structs follow the grammar one to one. `erase_spans` of two trees compares what they say. Goal: all
constructs on one screen each. Non-goal: meaning; names are strings here, and nothing is resolved.
"""

from typing import TypeVar

import msgspec

from cke.errors import Span


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every syntax node."""

    span: Span


class Identifier(Node, frozen=True):
    """A name where it is written."""

    name: str


class Text(Node, frozen=True):
    """A string literal."""

    value: str


# Axes and types.


class AxisName(Node, frozen=True):
    """A whole axis: `E`."""

    name: str


class AxisFraction(Node, frozen=True):
    """An axis divided by a literal or by another axis: `E/2`, `N/G`."""

    name: str
    divisor: int | str


class AxisLiteral(Node, frozen=True):
    """A constant extent: `3` in `[3 H E, D]`."""

    size: int


class AxisPairs(Node, frozen=True):
    """An axis stored as pairs of its halves: `pairs(E)`."""

    name: str


class AxisGroup(Node, frozen=True):
    """A sum inside a product: `(N + U)` in `[H (N + U), C]`."""

    terms: tuple["Product", ...]


AxisAtom = AxisName | AxisFraction | AxisLiteral | AxisPairs | AxisGroup


class Product(Node, frozen=True):
    """Axes side by side: `H E`."""

    atoms: tuple[AxisAtom, ...]


class Dimension(Node, frozen=True):
    """One position of a shape: a sum of products, mostly one term of one axis."""

    terms: tuple[Product, ...]


class Shape(Node, frozen=True):
    """`[B, T, D]`, or `[D -> H E]` when `result` is given."""

    axes: tuple[Dimension, ...]
    result: tuple[Dimension, ...] | None = None


class TypeAtom(Node, frozen=True):
    """`int`, `float?`, `per_head`, `int[B, T]`, `bool[B, T]?` or `[B, T, D]` (name None: float)."""

    name: str | None
    shape: Shape | None = None
    optional: bool = False


class Type(Node, frozen=True):
    """One atom, or the alternatives of a choice: `none | per_head | flat`."""

    alternatives: tuple[TypeAtom, ...]


# Expressions.


class Name(Node, frozen=True):
    """A name that is read: dim, config value, part, edge, operator or alternative."""

    name: str


class Root(Node, frozen=True):
    """`hf` or `gguf`: the model's own config, and an alternative of `source`."""

    format: str


class Literal(Node, frozen=True):
    """A number, string, `true`, `false` or `none`; `text` is a number's spelling."""

    value: int | float | str | bool | None
    text: str


class ListOf(Node, frozen=True):
    """`[a, b]`: a list of values, or the axes of a lane."""

    items: tuple["Expression", ...]


class Pair(Node, frozen=True):
    """`key: value` of a table or a map; `quoted` keys are strings."""

    key: str
    quoted: bool
    value: "Expression"


class Table(Node, frozen=True):
    """`{a: 1}`."""

    pairs: tuple[Pair, ...]


class Get(Node, frozen=True):
    """`value.name`."""

    value: "Expression"
    name: str


class Index(Node, frozen=True):
    """`value[index]`."""

    value: "Expression"
    index: "Expression"


class Argument(Node, frozen=True):
    """A positional argument (`name` None) or `name: value`."""

    name: str | None
    value: "Expression"


class Call(Node, frozen=True):
    """`function(arguments)`: a config function, a scaling, an operator, a part or a part[i]."""

    function: "Expression"
    arguments: tuple[Argument, ...]


class Via(Node, frozen=True):
    """`value via map`: the alternative that the map gives for a string."""

    value: "Expression"
    mapping: Name | Table


class Unary(Node, frozen=True):
    """`-x` or `not x`."""

    operator: str
    operand: "Expression"


class Binary(Node, frozen=True):
    """Arithmetic, comparison, `and`, `or`, `in` or `??`; `operator_span` is the sign itself."""

    operator: str
    left: "Expression"
    right: "Expression"
    operator_span: Span


class Conditional(Node, frozen=True):
    """`value if condition else otherwise`."""

    value: "Expression"
    condition: "Expression"
    otherwise: "Expression"


Expression = (
    Name | Root | Literal | ListOf | Table | Get | Index | Call | Via | Unary | Binary | Conditional
)

# Statements.


class Point(Node, frozen=True):
    """`@ name@version`; `version` None is the point's first version."""

    name: str
    version: int | None = None


class Assign(Node, frozen=True):
    """`a, b = value  @ points`."""

    targets: tuple[Identifier, ...]
    value: Expression
    points: tuple[Point, ...]


class Return(Node, frozen=True):
    """`return a, b  @ points`."""

    values: tuple[Expression, ...]
    points: tuple[Point, ...]


class Branch(Node, frozen=True):
    """`if` or `elif` with its body."""

    condition: Expression
    body: tuple["Statement", ...]


class If(Node, frozen=True):
    """Static control: the first branch that holds, else `otherwise`."""

    branches: tuple[Branch, ...]
    otherwise: tuple["Statement", ...] | None


class For(Node, frozen=True):
    """`for index in axis:`, unrolled."""

    index: Identifier
    axis: Identifier
    body: tuple["Statement", ...]


Statement = Assign | Return | If | For

# Parts, state and blocks.


class Constructor(Node, frozen=True):
    """`rms_norm[H, E](eps, offset: 1)`, `tensor[X]`, or a block with arguments."""

    name: str
    shape: Shape | None
    arguments: tuple[Argument, ...]


class Choice(Node, frozen=True):
    """One alternative of a part's constructor; the last has no condition."""

    constructor: Constructor
    condition: Expression | None


class Transform(Node, frozen=True):
    """`add(-norm_offset)`, `negate` or `log`, applied at load."""

    name: str
    arguments: tuple[Argument, ...]


class Source(Node, frozen=True):
    """`hf "a" | "b" as [layout] then transforms if condition`."""

    format: str
    names: tuple[Text, ...]
    layout: Shape | None
    transforms: tuple[Transform, ...]
    condition: Expression | None


class Tied(Node, frozen=True):
    """`tied embed if tie`: the tensor of another part."""

    part: Identifier
    condition: Expression


Clause = Source | Tied


class Part(Node, frozen=True):
    """`name[axis]: constructor   clauses   when condition`."""

    name: str
    name_span: Span
    axis: Identifier | None
    choices: tuple[Choice, ...]
    clauses: tuple[Clause, ...]
    condition: Expression | None


class Sources(Node, frozen=True):
    """`a, b   clauses`: sources for parts declared elsewhere; several names share the tensor."""

    names: tuple[Identifier, ...]
    clauses: tuple[Clause, ...]
    condition: Expression | None


PartRow = Part | Sources


class StateRow(Node, frozen=True):
    """`kv: cache(k: [K, E], window: window)   when condition`."""

    name: str
    kind: Identifier
    arguments: tuple[Argument, ...]
    condition: Expression | None


class Given(Node, frozen=True):
    """`a, b: type = default`."""

    names: tuple[Identifier, ...]
    type: Type
    default: Expression | None


class Rename(Node, frozen=True):
    """`F = A M`: what a taxonomy's axis is in this block."""

    axis: Identifier
    axes: Product


class Parameter(Node, frozen=True):
    """`x: [B, T, D] @ layer_input`."""

    name: str
    type: Type
    point: Point | None


class Block(Node, frozen=True):
    """A block; `signature` is the span of its head."""

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Shape, ...]
    given: tuple[Given, ...]
    renames: tuple[Rename, ...]
    parts: tuple[PartRow, ...]
    state: tuple[StateRow, ...]
    body: tuple[Statement, ...]
    signature: Span


class PartsOf(Node, frozen=True):
    """`parts of block:` rows that change sources for one circuit."""

    block: Identifier
    rows: tuple[PartRow, ...]


# Heads, config and tables.


class Circuit(Node, frozen=True):
    """`circuit name@version from parent@version "title"`."""

    name: str
    version: int
    parent: Identifier | None
    parent_version: int | None
    title: str | None


class Use(Node, frozen=True):
    """`use blocks.decoder`."""

    path: str
    version: int | None


class Model(Node, frozen=True):
    """`model causal_lm`: the entry block."""

    block: Identifier


class MatchRow(Node, frozen=True):
    """`hf Class, Class under text_config when condition`."""

    format: str
    names: tuple[Identifier, ...]
    under: str | None
    condition: Expression | None


class Match(Node, frozen=True):
    """Which models the circuit is for."""

    rows: tuple[MatchRow, ...]


class IgnoreTensors(Node, frozen=True):
    """Tensors that are known and not read, as patterns."""

    patterns: tuple[Text, ...]


class Bind(Node, frozen=True):
    """`name: type = value "meaning"`."""

    name: str
    name_span: Span
    type: Type
    value: Expression
    meaning: str | None = None


class Rebind(Node, frozen=True):
    """`name = value`: the type is the parent's."""

    name: str
    name_span: Span
    value: Expression


class Ignore(Node, frozen=True):
    """Config keys that are known and not read; a nested or GGUF key is a path."""

    names: tuple[Identifier, ...]


class Require(Node, frozen=True):
    """A condition that a config must meet, and what to say when it does not."""

    condition: Expression
    message: str


ConfigRow = Bind | Rebind | Ignore | Require


class Config(Node, frozen=True):
    """`config name from fragments:` and its rows; the circuit's own config has no name."""

    name: str | None
    parents: tuple[Identifier, ...]
    rows: tuple[ConfigRow, ...]


class Schedule(Node, frozen=True):
    """`schedule i in L:` and its rows, evaluated at every index."""

    index: Identifier
    axis: Identifier
    rows: tuple[Bind | Rebind, ...]


class MapTable(Node, frozen=True):
    """`map name:` from external strings to alternatives."""

    name: str
    pairs: tuple[Pair, ...]


class Term(Node, frozen=True):
    """`compute(input: f32)`: one section of a contract."""

    section: str
    arguments: tuple[Argument, ...]


class NumericsRow(Node, frozen=True):
    """`rms_norm, moe.router: terms`."""

    selectors: tuple[Text, ...]
    terms: tuple[Term, ...]


class Numerics(Node, frozen=True):
    """`numerics name from fragments:`; the circuit's own has no name."""

    name: str | None
    parents: tuple[Identifier, ...]
    rows: tuple[NumericsRow, ...]


class TaxonomyRow(Node, frozen=True):
    """`point@version [axes] "title"`; `version` None is the taxonomy's own."""

    name: str
    version: int | None
    shape: Shape
    title: str | None


class Taxonomy(Node, frozen=True):
    """`taxonomy name@version from parent@version:`."""

    name: str
    version: int
    parent: Identifier | None
    parent_version: int | None
    rows: tuple[TaxonomyRow, ...]


Item = (
    Circuit
    | Use
    | Model
    | Match
    | IgnoreTensors
    | Config
    | Schedule
    | MapTable
    | Numerics
    | Taxonomy
    | Block
    | PartsOf
)


class Comment(Node, frozen=True):
    """`# text`; `own_line` when nothing stands before it."""

    text: str
    own_line: bool


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed file: its items in order, its comments, its text and the sha256 of its bytes."""

    name: str
    items: tuple[Item, ...]
    comments: tuple[Comment, ...]
    text: str
    sha256: str

    def line(self, number: int) -> str:
        """Return line `number`, counted from 1, without its end."""
        lines = self.text.split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""


NOWHERE = Span("", 0, 0, 0, 0)
AnyNode = TypeVar("AnyNode", bound=msgspec.Struct)


def erase_spans(node: AnyNode) -> AnyNode:
    """Return the tree with every span replaced by `NOWHERE`, to compare what two texts say."""
    changes = {name: _erase(getattr(node, name)) for name in node.__struct_fields__}
    return msgspec.structs.replace(node, **changes)


def _erase(value: object) -> object:
    if isinstance(value, Span):
        return NOWHERE
    if isinstance(value, tuple):
        return tuple(map(_erase, value))
    if isinstance(value, msgspec.Struct):
        return erase_spans(value)
    return value
