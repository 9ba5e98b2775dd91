"""Operators of mixtures of experts: route and combine."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import (
    Types,
    need,
    need_float,
    optional,
    same_dtype,
    text,
)
from cke.schemas.ir import TensorType, Value


def _check_groups(experts: int, attributes: Mapping[str, Value]) -> None:
    groups = attributes.get("groups") or 1
    kept = attributes.get("groups_kept") or 1
    k = attributes["k"]
    if not 1 <= k <= experts:
        raise ShapeError(f"selects {k} of {experts} experts: it must be between 1 and {experts}")
    if experts % groups or not 1 <= kept <= groups:
        raise ShapeError(f"keeps {kept} of {groups} groups, got {experts} experts")
    if k > experts // groups * kept:
        raise ShapeError(f"selects {k} experts, got {experts // groups * kept} in the kept groups")


def _route(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    logits, bias = need(inputs, 0, "logits"), optional(inputs, 1)
    need_float(logits, "logits")
    experts = logits.shape[-1]
    if not isinstance(experts, int):
        raise ShapeError(f"needs the size of {logits.axes[-1]}, got the symbol {experts}")
    if bias is not None and (bias.axes, bias.shape) != (logits.axes[-1:], logits.shape[-1:]):
        raise ShapeError(f"expects a choice bias {text(logits.axes[-1:])}, got {text(bias.axes)}")
    _check_groups(experts, attributes)
    axes = (*logits.axes[:-1], attributes.get("axis") or "A")
    shape = (*logits.shape[:-1], attributes["k"])
    ids = TensorType(axes=axes, shape=shape, dtype="i32")
    return Inference((ids, TensorType(axes=axes, shape=shape, dtype=logits.dtype)))


def _combine(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    y, share = need(inputs, 0, "y"), need(inputs, 1, "weights")
    need_float(y, "y")
    same_dtype(y, share)
    count = len(share.axes)
    if y.axes[:count] != share.axes or y.shape[:count] != share.shape:
        raise ShapeError(f"expects y over {text(share.axes)}, got {text(y.axes)}")
    axes = y.axes[: count - 1] + y.axes[count:]
    shape = y.shape[: count - 1] + y.shape[count:]
    result = TensorType(axes=axes, shape=shape, dtype=y.dtype)
    return Inference((result,), {"axis": count - 1})


ROUTE = Operator(
    name="route",
    summary="Selects k experts per row and their weights; equal scores prefer the lower id.",
    inputs=(Operand("logits"), Operand("choice_bias", absent="the choice reads the scores alone")),
    attributes=(
        Attribute(name="k", kind="int"),
        Attribute(
            name="score", kind="choice", default="softmax", alternatives=("softmax", "sigmoid")
        ),
        Attribute(
            name="order",
            kind="choice",
            default="score_then_topk",
            alternatives=("score_then_topk", "topk_then_score"),
        ),
        Attribute(name="renormalise", kind="bool", default=True, alternatives=(False, True)),
        Attribute(name="eps", kind="float", default=0.0, alternatives=(0.0, 1e-20, 1e-6)),
        Attribute(name="scale", kind="float", default=1.0),
        Attribute(name="groups", kind="int", default=1),
        Attribute(name="groups_kept", kind="int", default=1),
        Attribute(
            name="group_score",
            kind="choice",
            default="top2_sum",
            alternatives=("top2_sum", "max"),
        ),
        Attribute(name="axis", kind="axis", default="A"),
    ),
    results=(Operand("ids"), Operand("weights")),
    shape_rule=_route,
)
COMBINE = Operator(
    name="combine",
    summary="The sum of y over the selected experts, weighted.",
    inputs=(Operand("y"), Operand("weights")),
    shape_rule=_combine,
)
