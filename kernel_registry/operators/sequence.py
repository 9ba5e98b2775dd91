"""Operators that carry state along positions: depthwise_conv and ssd_scan."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import (
    Types,
    need,
    need_float,
    need_int,
    same_size,
    text,
)
from cke.schemas.ir import Dim, TensorType, Value


def _depthwise_conv(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, weight = need(inputs, 0, "x"), need(weights, 0, "weight")
    need_float(x, "x")
    if len(x.axes) != 3 or x.axes[-1] != weight.axes[0]:
        raise ShapeError(f"convolves [B, T, {weight.axes[0]}] along T, got {text(x.axes)}")
    same_size(x.axes[-1], x.shape[-1], weight.shape[0])
    need_int(need(inputs, 1, "positions"), "positions")
    return Inference((x,))


def _conv_weights(
    before: tuple[str, ...], after: tuple[str, ...], attributes: Mapping[str, Value]
) -> dict[str, tuple[str, ...]]:
    if len(before) != 2 or after:
        raise ShapeError("takes `[channels, width]`, such as `depthwise_conv[Y, J]`")
    weights: dict[str, tuple[str, ...]] = {"weight": before}
    return {**weights, "bias": before[:1]} if attributes.get("bias") else weights


def _product(shape: tuple[Dim, ...], axes: tuple[str, ...]) -> int:
    total = 1
    for size in shape:
        if not isinstance(size, int):
            raise ShapeError(f"needs the sizes of {text(axes)}, got the symbol {size}")
        total *= size
    return total


def _ssd_scan(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    names = ("x", "dt", "a_log", "b", "c", "d")
    x, dt, a_log, b, c, d = (need(inputs, index, name) for index, name in enumerate(names))
    need_float(x, "x")
    rows = dt.axes[:-1]
    for name, operand in (("x", x), ("b", b), ("c", c)):
        if operand.axes[: len(rows)] != rows:
            raise ShapeError(f"expects `{name}` over {text(rows)}, got {text(operand.axes)}")
    for name, operand in (("a_log", a_log), ("d", d)):
        if operand.shape != dt.shape[-1:]:
            raise ShapeError(f"expects `{name}` {text(dt.axes[-1:])}, got {text(operand.axes)}")
    width = _product(x.shape[len(rows) :], x.axes[len(rows) :])
    states = _product(b.shape[len(rows) :], b.axes[len(rows) :])
    same_size("the state", states, _product(c.shape[len(rows) :], c.axes[len(rows) :]))
    heads = _product(dt.shape[-1:], dt.axes[-1:])
    groups: int = attributes.get("groups") or 1
    if width % heads or heads % groups or states % groups:
        raise ShapeError(
            f"cuts {width} values into {heads} heads and {groups} groups: it must be a multiple"
        )
    lane = tuple(attributes.get("state_axes") or (dt.axes[-1], "P", "S1"))
    result = TensorType(
        axes=(*rows, dt.axes[-1], lane[1]),
        shape=(*dt.shape, width // heads),
        dtype=x.dtype,
    )
    need_int(need(inputs, 6, "positions"), "positions")
    return Inference((result,))


LANES = Attribute(name="lanes", kind="list", hidden=True, source="slot.lanes")

DEPTHWISE_CONV = Operator(
    name="depthwise_conv",
    summary="A causal convolution along T per channel; the last J - 1 rows are kept as state.",
    inputs=(Operand("x"), Operand("positions", hidden=True)),
    weights=(Operand("weight"), Operand("bias", absent="there is no bias")),
    attributes=(
        Attribute(name="bias", kind="bool", default=False, alternatives=(False, True)),
        LANES,
    ),
    shape_rule=_depthwise_conv,
    weight_rule=_conv_weights,
    state="shift",
)
SSD_SCAN = Operator(
    name="ssd_scan",
    summary="h ← exp(-exp(a_log)·dt)·h + dt·x⊗b; y = h·c + d·x, per head, along T.",
    inputs=(
        Operand("x"),
        Operand("dt"),
        Operand("a_log"),
        Operand("b"),
        Operand("c"),
        Operand("d"),
        Operand("positions", hidden=True),
    ),
    attributes=(
        Attribute(name="groups", kind="int", default=1),
        LANES,
        Attribute(name="state_axes", kind="axes", default=None, hidden=True, source="slot.axes"),
    ),
    shape_rule=_ssd_scan,
    state="carry",
)
