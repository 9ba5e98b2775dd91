"""Every kind of counterfactual in words."""

import pytest

from cke.schemas.diagnosis import Counterfactual
from cke.xray.changes import described, with_origin

WORDS = [
    ("attribute", "base", 12345.0, 10000.0, "`base` 10000.0 in place of 12345.0"),
    ("attribute", "window", 8, None, "`window` none in place of 8"),
    ("operator", "silu", "silu", "gelu_tanh", "`gelu_tanh` in place of `silu`"),
    ("operator", "rope", "rope", "its operand 0 alone", "its operand 0 alone in place of `rope`"),
    ("operand", "operand 0", "h", "x", "`x` in place of `h` as operand 0"),
    (
        "operand",
        "operands 1 and 2",
        ["k", "v"],
        ["v", "k"],
        "`v, k` in place of `k, v` as operands 1 and 2",
    ),
    ("operand", "a rope", None, "10000, split_half", "a rope (`10000, split_half`) after it"),
    ("operand", "a rope of operand 1", None, "10000", "a rope of operand 1 (`10000`)"),
    ("insertion", "scale", 1, 0.5, "a `scale` of 0.5 after it"),
    ("insertion", "scale of operand 1", 1, 0.5, "a `scale` of 0.5 on operand 1"),
    ("insertion", "silu of operand 0", None, "silu", "a `silu` on operand 0"),
    ("insertion", "bias", None, "fitted", "a bias added"),
    (
        "position",
        "positions",
        "as fed",
        "one more",
        "positions `one more` in place of those that the oracle states",
    ),
]


@pytest.mark.parametrize(("kind", "what", "old", "new", "words"), WORDS)
def test_change_is_said_by_its_kind(
    kind: str, what: str, old: object, new: object, words: str
) -> None:
    change = Counterfactual(
        op="op", kind=kind, what=what, old=old, new=new, origin="from", before=1.0, after=0.0,
        closes=True,
    )  # fmt: skip
    assert described(change) == words
    assert with_origin(change) == f"{words} (from)"
