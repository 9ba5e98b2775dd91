"""Shape rules: named axes, exact texts of what does not fit, layouts that kernels need."""

import subprocess
import sys
from typing import Any

import pytest

from cke.kernel_registry.operators import (
    OPERATORS,
    SPELLINGS,
    ShapeError,
    kernel_arguments,
    scaling,
)
from cke.kernel_registry.references import REFERENCES
from cke.schemas.ir import TensorType

SIZES = {"D": 8, "H": 4, "K": 2, "E": 4, "X": 6, "M": 5, "N": 3, "R": 1, "A": 2}


def t(axes: str, dtype: str = "f32", **sizes: int) -> TensorType:
    names = tuple(axes.split())
    shape = tuple({**SIZES, **sizes}.get(name, name) for name in names)
    return TensorType(axes=names, shape=shape, dtype=dtype)


def infer(operator: str, inputs: list[Any], weights: list[Any] | None = None, **attributes: Any):
    return OPERATORS[operator].shape_rule(inputs, weights or [], attributes)


def test_every_operator_has_a_reference_and_the_reverse() -> None:
    assert set(OPERATORS) == set(REFERENCES)


def test_linear_replaces_the_contracted_axes_in_place() -> None:
    made = infer("linear", [t("B T H E")], [t("D H E"), None], contracted=["H", "E"])
    assert made.results[0].axes == ("B", "T", "D")
    assert made.layout == {"contract": 2}
    made = infer("linear", [t("B D T")], [t("E D"), None], contracted=["D"])
    assert made.results[0].axes == ("B", "E", "T")
    assert made.layout == {"contract": 1, "start": 1}


@pytest.mark.parametrize(
    ("operator", "inputs", "weights", "attributes", "text"),
    [
        (
            "linear",
            [t("B T H E")],
            [t("H E D"), None],
            {"contracted": ["D"]},
            "contracts [D], got [B, T, H, E]",
        ),
        (
            "linear",
            [t("B T D", D=9)],
            [t("H E D"), None],
            {"contracted": ["D"]},
            "expects one size of D, got 8 and 9",
        ),
        ("rms_norm", [t("B T D"), None], [t("E")], {}, "normalises [E], got [B, T, D]"),
        ("add", [t("B T D"), t("B T D", "bf16")], [], {}, "meets f32 and bf16"),
        ("silu", [t("B T", "i32")], [], {}, "expects floats for `x`, got i32[B, T]"),
        ("rope", [t("B T E"), t("B T", "i32"), None], [], {"width": 3}, "an even width"),
        ("split", [t("B T D")], [], {"axis": "D", "sizes": [3, 4]}, "splits D of 8, got sizes"),
        ("take", [t("B T D")], [], {"axis": "E", "at": 0}, "takes one of E, got [B, T, D]"),
        ("route", [t("B T X"), None], [], {"k": 7}, "selects 7 of 6 experts"),
        (
            "sdpa",
            [t("B T H E"), t("B S K E"), t("B S K E")],
            [],
            {"mask": "causal"},
            "needs `positions`, got none",
        ),
    ],
)
def test_a_misfit_says_what_is_expected_and_what_was_got(
    operator: str, inputs: list[Any], weights: list[Any], attributes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        infer(operator, inputs, weights, **attributes)
    assert text in str(caught.value)


def test_elementwise_operands_align_by_axis_name() -> None:
    made = infer("multiply", [t("D"), t("B T D")])
    assert made.results[0].axes == ("B", "T", "D")
    assert made.layout == {"left_axes": [2], "rank": 3}
    assert infer("add", [t("B T D"), t("B T D")]).layout == {}


def test_concat_joins_axes_of_different_names() -> None:
    made = infer("concat", [t("B S H N"), t("B S H R")], axis="E")
    assert made.results[0].axes == ("B", "S", "H", "E")
    assert made.results[0].shape[3] == 4


def test_append_grows_lanes_to_key_positions() -> None:
    made = infer("append", [t("B T", "i32"), t("B T K E"), t("B T K E")])
    assert [r.axes for r in made.results] == [("B", "S", "K", "E")] * 2 + [("B", "S")]


def test_axis_names_and_weight_flags_never_reach_a_kernel() -> None:
    linear = OPERATORS["linear"]
    given = kernel_arguments(linear, {"bias": True, "contracted": ["D"]}, {"contract": 1})
    assert given == {"contract": 1}


def test_identity_rules() -> None:
    assert OPERATORS["scale"].identity_when is not None
    assert OPERATORS["scale"].identity_when({"by": 1})
    assert not OPERATORS["scale"].identity_when({"by": 2})


def test_a_scaling_names_what_it_lacks_and_what_it_does_not_know() -> None:
    with pytest.raises(ShapeError, match="`llama3` needs `low`, got none"):
        scaling("llama3", {"factor": 8.0})
    with pytest.raises(ShapeError, match="`linear` has no parameter `scale`"):
        scaling("linear", {"factor": 8.0, "scale": 1})


def test_external_spellings_lead_to_operators() -> None:
    assert SPELLINGS["activations"]["gelu_pytorch_tanh"] == "gelu_tanh"
    assert SPELLINGS["activations"]["swish"] == "silu"
    assert set(SPELLINGS["activations"].values()) <= set(OPERATORS)


def test_the_table_imports_neither_jax_nor_numpy() -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import cke.kernel_registry.operators;"
        "sys.exit(any(name in sys.modules for name in ('jax', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
