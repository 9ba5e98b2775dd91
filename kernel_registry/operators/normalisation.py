"""Operators that normalise over trailing axes: rms_norm and layer_norm."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import Types, need, need_float, optional, tail, text
from cke.schemas.ir import Dim, TensorType, Value

EPS = Attribute(name="eps", kind="float", alternatives=(1e-12, 1e-8, 1e-6, 1e-5, 1e-3))
WEIGHT = Attribute(name="weight", kind="bool", default=True)


def _normalised(x: TensorType, weight: TensorType | None) -> int:
    """How many trailing axes are normalised: those of the weight, or the last one."""
    if weight is None:
        return 1
    start = tail(x, weight.axes, weight.shape, "normalises")
    if start + len(weight.axes) != len(x.axes):
        raise ShapeError(f"normalises trailing axes {text(weight.axes)}, got {text(x.axes)}")
    return len(weight.axes)


def _rms_norm(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, gate, weight = need(inputs, 0, "x"), optional(inputs, 1), optional(weights, 0)
    need_float(x, "x")
    count = _normalised(x, weight)
    if gate is not None and (gate.axes, gate.shape) != (x.axes, x.shape):
        raise ShapeError(f"expects a gate {text(x.axes)}, got {text(gate.axes)}")
    groups: int = attributes.get("groups") or 1
    sizes: tuple[Dim, ...] = x.shape[-count:]
    width = 1
    for size in sizes:
        if not isinstance(size, int):
            raise ShapeError(f"needs sizes of {text(x.axes[-count:])}, got the symbol {size}")
        width *= size
    if width % groups:
        raise ShapeError(f"cuts {width} values into {groups} groups: it must be a multiple")
    return Inference((x,), {"axes": count})


def _layer_norm(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x = need(inputs, 0, "x")
    need_float(x, "x")
    return Inference((x,), {"axes": _normalised(x, optional(weights, 0))})


def _norm_weights(
    before: tuple[str, ...], after: tuple[str, ...], attributes: Mapping[str, Value]
) -> dict[str, tuple[str, ...]]:
    if not before or after:
        raise ShapeError("takes normalised axes alone, such as `rms_norm[D]`")
    weights = {"weight": before} if attributes.get("weight", True) else {}
    return {**weights, "bias": before} if attributes.get("bias") else weights


def _without_weight() -> Operand:
    return Operand("weight", absent="the whole operator is the identity, unless `weight: false`")


RMS_NORM = Operator(
    name="rms_norm",
    summary="x / √(mean(x²) + eps) · (weight + offset); a gate first makes it x · silu(gate).",
    inputs=(Operand("x"), Operand("gate", absent="x is not gated")),
    weights=(_without_weight(),),
    attributes=(
        EPS,
        Attribute(name="offset", kind="int", default=0, alternatives=(0, 1)),
        Attribute(name="groups", kind="int", default=1),
        WEIGHT,
    ),
    shape_rule=_rms_norm,
    weight_rule=_norm_weights,
)
LAYER_NORM = Operator(
    name="layer_norm",
    summary="(x - mean) / √(variance + eps) · weight + bias.",
    inputs=(Operand("x"),),
    weights=(_without_weight(), Operand("bias", absent="there is no bias")),
    attributes=(
        EPS,
        Attribute(name="bias", kind="bool", default=False, alternatives=(False, True)),
        WEIGHT,
    ),
    shape_rule=_layer_norm,
    weight_rule=_norm_weights,
)
