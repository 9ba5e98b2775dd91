"""Formatting keeps meaning and comments, and formatting twice changes nothing."""

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark

from cke.dsl import syntax
from cke.dsl.format import format_text
from cke.dsl.format_expressions import LEVELS, expression, wrapped
from cke.dsl.layout import Layout
from cke.dsl.parse import parse
from cke.errors import CkeError

CIRCUITS = sorted(Path(str(resources.files("cke.circuits"))).rglob("*.circuit"))
GRAMMAR = (resources.files("cke.dsl") / "grammar.lark").read_text("utf-8")
PARSER = Lark(GRAMMAR, start=["type", "shape"], parser="lalr", postlex=Layout())
TERMINALS = {
    "_INDENT": st.just(""),
    "_DEDENT": st.just(""),
    "_NL": st.just(""),
    "NAME": st.sampled_from(["D", "eps", "scale", "window"]),
    "INT": st.sampled_from(["0", "7", "128"]),
    "FLOAT": st.sampled_from(["0.5", "1e-6", "2.5e10"]),
    "STRING": st.sampled_from(['""', '"q_proj"', '"a # b"']),
    "__IGNORE_0": st.just(" "),
    "__IGNORE_1": st.just(" "),
}
QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)


def fragments(start: str) -> st.SearchStrategy[str]:
    """Return texts of one rule of the grammar."""
    return from_lark(PARSER, start=start, explicit=TERMINALS)


def says(file: syntax.File) -> list[syntax.Item]:
    return [syntax.erase_spans(item) for item in file.items]


def assert_round_trip(text: str) -> None:
    """A text that parses says the same after formatting, and formatting is idempotent."""
    try:
        before = parse(text, "x.circuit")
    except CkeError:
        return
    formatted = format_text(text, "x.circuit")
    after = parse(formatted, "x.circuit")
    assert says(after) == says(before)
    assert sorted(c.text for c in after.comments) == sorted(c.text for c in before.comments)
    assert format_text(formatted, "x.circuit") == formatted


@pytest.mark.parametrize("path", CIRCUITS, ids=lambda path: path.stem)
def test_library_is_formatted(path: Path) -> None:
    text = path.read_text("utf-8")
    assert format_text(text, path.name) == text
    assert_round_trip(text)


AT: dict[str, Any] = {"span": syntax.NOWHERE}
NAMES = st.sampled_from(["D", "eps", "scale", "window"])
LEAVES = st.one_of(
    NAMES.map(lambda name: syntax.Name(name=name, **AT)),
    st.sampled_from(["hf", "gguf"]).map(lambda name: syntax.Root(format=name, **AT)),
    st.sampled_from([7, 0.5, None, True, "a # b"]).map(
        lambda value: syntax.Literal(value=value, text=shown(value), **AT)
    ),
)
SIGNS = st.sampled_from(sorted(LEVELS))


def shown(value: object) -> str:
    words = {None: "none", True: "true"}
    if isinstance(value, str):
        return f'"{value}"'
    return words.get(value) or str(value)  # type: ignore[call-overload,no-any-return]


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return expressions made of smaller ones."""
    argument = st.builds(
        lambda name, value: syntax.Argument(name=name, value=value, **AT), st.none() | NAMES, inner
    )
    pair = st.builds(
        lambda key, value: syntax.Pair(key=key, quoted=False, value=value, **AT), NAMES, inner
    )
    tables = st.lists(pair, max_size=2).map(lambda pairs: syntax.Table(pairs=tuple(pairs), **AT))
    return st.one_of(
        tables,
        st.lists(inner, max_size=3).map(lambda items: syntax.ListOf(items=tuple(items), **AT)),
        st.builds(lambda v, name: syntax.Get(value=v, name=name, **AT), inner, NAMES),
        st.builds(lambda v, index: syntax.Index(value=v, index=index, **AT), inner, inner),
        st.builds(
            lambda f, items: syntax.Call(function=f, arguments=tuple(items), **AT),
            inner,
            st.lists(argument, max_size=3),
        ),
        st.builds(lambda v, table: syntax.Via(value=v, mapping=table, **AT), inner, tables),
        st.builds(
            lambda sign, v: syntax.Unary(operator=sign, operand=v, **AT),
            st.sampled_from(["-", "not"]),
            inner,
        ),
        st.builds(
            lambda sign, left, right: syntax.Binary(
                operator=sign, left=left, right=right, operator_span=syntax.NOWHERE, **AT
            ),
            SIGNS,
            inner,
            inner,
        ),
        st.builds(
            lambda v, c, o: syntax.Conditional(value=v, condition=c, otherwise=o, **AT),
            inner,
            inner,
            inner,
        ),
    )


@settings(QUICK, max_examples=200)
@given(st.recursive(LEAVES, larger, max_leaves=12))
def test_printed_expression_parses_to_itself(node: syntax.Expression) -> None:
    for text in (expression(node), wrapped(node, 60, "  ")):
        row = parse(f"config:\n  a = {text}\n", "x.circuit").items[0].rows[0]  # type: ignore[union-attr]
        assert syntax.erase_spans(row.value) == node  # type: ignore[union-attr]
    assert_round_trip(f"config:\n  a = {expression(node)}\n")


@QUICK
@given(fragments("type"), fragments("shape"))
def test_types_and_layouts_round_trip(type_: str, shape: str) -> None:
    assert_round_trip(f'config:\n  a: {type_} = 1\n\nparts of b:\n  p   hf "w" as {shape}\n')


@QUICK
@given(st.sampled_from(CIRCUITS), st.randoms(use_true_random=False))
def test_parser_raises_nothing_but_its_own_error(path: Path, random: object) -> None:
    text = path.read_text("utf-8")
    for _ in range(3):
        text = mutated(text, random)
    assert_round_trip(text)


def mutated(text: str, random: object) -> str:
    """Delete, copy, or insert something somewhere."""
    choose = getattr(random, "randrange")  # noqa: B009
    start = choose(len(text))
    stop = min(len(text), start + choose(1, 40))
    piece = ["", text[start:stop] * 2, "\n", "(", " ", '"', "  x = y\n", "\t", "é", "# c"][
        choose(10)
    ]
    return text[:start] + piece + text[stop:]


@QUICK
@given(st.text())
def test_any_text_parses_or_is_an_error(text: str) -> None:
    assert_round_trip(text)


@pytest.mark.parametrize("opening", ["(", "[", "{a: ", "f(", "not ", "- ", "a if b else ", "a ?? "])
def test_hostile_depth_is_one_error(opening: str) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE1\d\d\]") as caught:
        parse(f"config:\n  a = {opening * 5000}\n", "x.circuit")
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("", " + 1")])
def test_hostile_length_parses_or_is_an_error(before: str, after: str) -> None:
    assert_round_trip(f"config:\n  a = {before * 3000}1{after * 3000}\n")


def test_comments_stay_with_their_rows() -> None:
    text = (
        "# head\ncircuit a@1   # name\n\n# section\nconfig:\n  # above\n  eps = 1   # behind\n"
        "  # last\nmodel m\n# end\n"
    )
    assert format_text(text, "a.circuit") == (
        "# head\ncircuit a@1                               # name\n\n# section\nconfig:\n"
        "  # above\n  eps = 1                                 # behind\n  # last\n\n"
        "model m\n\n# end\n"
    )
