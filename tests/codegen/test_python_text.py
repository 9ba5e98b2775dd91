import subprocess
import sys

import pytest

from cke.codegen.python_text import bracketed, collection, literal
from cke.codegen.step_view import sequence

LONG = {"kind": "llama3", "factor": 32.0, "low": 1.0, "high": 4.0, "original": 8192}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (True, "True"),
        (1e-05, "1e-05"),
        ("causal", '"causal"'),
        ('say "x"', "'say \"x\"'"),
        ([1], "(1,)"),
        ([1, [2, 3]], "(1, (2, 3))"),
        ({"factor": 8.0}, '{"factor": 8.0}'),
    ],
)
def test_constants_are_written_as_python(value: object, expected: str) -> None:
    assert literal(value) == expected


def formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "100", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("count", [1, 4, 8, 12, 30])
@pytest.mark.parametrize("comment", ["", "  # circuits/blocks/decoder.circuit:45"])
@pytest.mark.parametrize("scaling", [None, LONG, list(range(40))])
def test_calls_break_as_the_formatter_breaks_them(
    count: int, comment: str, scaling: object
) -> None:
    items = [f"argument_{index}" for index in range(count)]
    lines = bracketed("y = rope(", [*items, ("scaling", scaling)], ")", 0, comment)
    assert "\n".join(lines) + "\n" == formatted("\n".join(lines) + "\n")


@pytest.mark.parametrize("count", [1, 3, 9])
def test_collections_break_as_the_formatter_breaks_them(count: int) -> None:
    items = [f"value_number_{index}" for index in range(count)]
    text = "\n".join(collection("x = {", items, "}", 0)) + "\n"
    assert text == formatted(text)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("aaaa", "(a,) * 4"),
        ("ab", "(a, b)"),
        ("abab", "(a, b) * 2"),
        ("aabaab", "((a,) * 2 + (b,)) * 2"),
        ("aabaabaa", "((a,) * 2 + (b,)) * 2 + (a,) * 2"),
        ("abbbb", "(a,) + (b,) * 4"),
    ],
)
def test_a_sequence_of_layers_is_written_once_per_repeat(items: str, expected: str) -> None:
    text = sequence(list(items))
    assert text == expected
    assert eval(text, {"a": "a", "b": "b"}) == tuple(items)
