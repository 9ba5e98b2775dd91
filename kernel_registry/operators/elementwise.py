"""Elementwise operators: activations, arithmetic by axis name, scale, softcap and clip."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator
from cke.kernel_registry.operators.shapes import Types, align, need, need_float, placed
from cke.schemas.ir import Value


def _unary(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x = need(inputs, 0, "x")
    need_float(x, "x")
    return Inference((x,))


def _binary(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    left, right = need(inputs, 0, "left"), need(inputs, 1, "right")
    need_float(left, "left")
    need_float(right, "right")
    result = align(left, right)
    layout: dict[str, Value] = {}
    if left.axes != result.axes:
        layout["left_axes"] = placed(left, result)
    if right.axes != result.axes:
        layout["right_axes"] = placed(right, result)
    if layout:
        layout["rank"] = len(result.axes)
    return Inference((result,), layout)


def _scale(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x = need(inputs, 0, "x")
    need_float(x, "x")
    return Inference((x,), {"dtype": x.dtype} if attributes.get("constant") == "storage" else {})


def _activation(name: str, summary: str, *spellings: str) -> Operator:
    return Operator(
        name=name,
        summary=summary,
        inputs=(Operand("x"),),
        shape_rule=_unary,
        spellings=spellings,
    )


def _arithmetic(name: str, summary: str) -> Operator:
    return Operator(
        name=name, summary=summary, inputs=(Operand("left"), Operand("right")), shape_rule=_binary
    )


ACTIVATIONS = (
    _activation("silu", "x · sigmoid(x).", "silu", "swish"),
    _activation(
        "gelu_tanh",
        "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).",
        "gelu_new",
        "gelu_pytorch_tanh",
        "gelu_fast",
        "gelu_python_tanh",
        "gelu_tanh",
    ),
    _activation("gelu_erf", "x · Φ(x), with the exact normal distribution.", "gelu", "gelu_python"),
    _activation("gelu_quick", "x · sigmoid(1.702 x).", "quick_gelu"),
    _activation("relu", "max(x, 0).", "relu"),
    _activation("relu_squared", "max(x, 0)².", "relu2"),
    _activation("sigmoid", "1 / (1 + exp(-x)).", "sigmoid"),
    _activation("tanh", "The hyperbolic tangent.", "tanh"),
    _activation("softplus", "log(1 + exp(x)).", "softplus"),
)
ADD = _arithmetic("add", "left + right, aligned by axis name.")
SUBTRACT = _arithmetic("subtract", "left - right, aligned by axis name.")
MULTIPLY = _arithmetic("multiply", "left · right, aligned by axis name.")
SCALE = Operator(
    name="scale",
    summary="x · by; the constant is rounded to f32, or to the dtype of x (`storage`).",
    inputs=(Operand("x"),),
    attributes=(
        Attribute(name="by", kind="float", traced=True),
        Attribute(name="constant", kind="choice", default="f32", alternatives=("f32", "storage")),
    ),
    shape_rule=_scale,
    identity_when=lambda attributes: attributes.get("by") == 1,
)
SOFTCAP = Operator(
    name="softcap",
    summary="cap · tanh(x / cap).",
    inputs=(Operand("x"),),
    attributes=(Attribute(name="cap", kind="float", optional=True),),
    shape_rule=_unary,
    identity_when=lambda attributes: attributes.get("cap") is None,
)
CLIP = Operator(
    name="clip",
    summary="x limited to [low, high]; an absent bound limits nothing.",
    inputs=(Operand("x"),),
    attributes=(
        Attribute(name="low", kind="float", default=None, optional=True),
        Attribute(name="high", kind="float", default=None, optional=True),
    ),
    shape_rule=_unary,
    identity_when=lambda a: a.get("low") is None and a.get("high") is None,
)
ARITHMETIC = {"+": "add", "-": "subtract", "*": "multiply"}
"""The operator of each sign of the circuit language."""
