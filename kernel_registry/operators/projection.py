"""Operators that contract or look up weights: embedding, linear, expert_linear, patch_embed."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import (
    Types,
    need,
    need_float,
    need_int,
    optional,
    same_size,
    tail,
    text,
)
from cke.schemas.ir import Dim, TensorType, Value

BIAS = Attribute(name="bias", kind="bool", default=False, alternatives=(False, True))

CONTRACTED = Attribute(
    name="contracted", kind="axes", default=None, hidden=True, source="constructor.before"
)


def _embedding(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    ids, table = need(inputs, 0, "ids"), need(weights, 0, "weight")
    need_int(ids, "ids")
    axes = ids.axes + table.axes[1:]
    return Inference((TensorType(axes=axes, shape=ids.shape + table.shape[1:], dtype=table.dtype),))


def _embedding_weights(
    before: tuple[str, ...], after: tuple[str, ...], attributes: Mapping[str, Value]
) -> dict[str, tuple[str, ...]]:
    if len(before) != 1 or not after:
        raise ShapeError("takes `[rows -> width]`, such as `embedding[V -> D]`")
    return {"weight": before + after}


def _contracted(x: TensorType, weight: TensorType) -> int:
    """How many trailing axes of `weight` are a run of axes in `x`, at most all but one."""
    for count in range(len(weight.axes) - 1, 0, -1):
        axes = weight.axes[-count:]
        if any(x.axes[i : i + count] == axes for i in range(len(x.axes) - count + 1)):
            return count
    return 1


def _linear(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, weight = need(inputs, 0, "x"), need(weights, 0, "weight")
    need_float(x, "x")
    bias = optional(weights, 1)
    contracted = attributes.get("contracted")
    if contracted:
        count = len(contracted)
    elif bias is not None:
        count = len(weight.axes) - len(bias.axes)
    else:
        count = _contracted(x, weight)
    start = tail(x, weight.axes[-count:], weight.shape[-count:], "contracts")
    out, sizes = weight.axes[:-count], weight.shape[:-count]
    axes = x.axes[:start] + out + x.axes[start + count :]
    shape: tuple[Dim, ...] = x.shape[:start] + sizes + x.shape[start + count :]
    layout: dict[str, Value] = {"contract": count}
    if start + count < len(x.axes):
        layout["start"] = start
    return Inference((TensorType(axes=axes, shape=shape, dtype=x.dtype),), layout)


def _linear_weights(
    before: tuple[str, ...], after: tuple[str, ...], attributes: Mapping[str, Value]
) -> dict[str, tuple[str, ...]]:
    if not before or not after:
        raise ShapeError("takes `[contracted -> result]` axes, such as `linear[D -> H E]`")
    weights = {"weight": after + before}
    return {**weights, "bias": after} if attributes.get("bias") else weights


def _expert_linear(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, weight, ids = need(inputs, 0, "x"), need(inputs, 1, "weight"), need(inputs, 2, "ids")
    need_float(x, "x")
    need_int(ids, "ids")
    rows = ids.axes[:-1]
    selected = x.axes[: len(ids.axes)] == ids.axes
    if not selected and x.axes[: len(rows)] != rows:
        raise ShapeError(f"expects x over {text(rows)} or {text(ids.axes)}, got {text(x.axes)}")
    contracted = x.axes[len(ids.axes if selected else rows) :]
    count = len(contracted)
    if not count or len(weight.axes) <= count + 1 or weight.axes[-count:] != contracted:
        raise ShapeError(
            f"expects an expert weight that ends in {text(contracted)}, got {text(weight.axes)}"
        )
    for axis, a, b in zip(contracted, x.shape[-count:], weight.shape[-count:], strict=True):
        same_size(axis, a, b)
    out = TensorType(
        axes=ids.axes + weight.axes[1:-count],
        shape=ids.shape + weight.shape[1:-count],
        dtype=x.dtype,
    )
    return Inference((out,), {"selected": selected, "contract": count})


def _patch_embed(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    pixels, weight = need(inputs, 0, "pixels"), need(weights, 0, "weight")
    need_float(pixels, "pixels")
    if len(pixels.axes) != 4:
        raise ShapeError(f"expects pixels [B, Z, I, J], got {text(pixels.axes)}")
    same_size(pixels.axes[1], pixels.shape[1], weight.shape[-3])
    rows, columns, patch = pixels.shape[2], pixels.shape[3], weight.shape[-1]
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(patch, int)):
        raise ShapeError(f"needs the sizes of {text(pixels.axes[2:])}, got symbols")
    if rows % patch or columns % patch:
        raise ShapeError(f"cuts patches of {patch}, got an image of {rows} x {columns}")
    count = (rows // patch) * (columns // patch)
    shape: tuple[Dim, ...] = (pixels.shape[0], count, *weight.shape[:-3])
    axes = (pixels.axes[0], "T", *weight.axes[:-3])
    return Inference((TensorType(axes=axes, shape=shape, dtype=weight.dtype),))


def _patch_weights(
    before: tuple[str, ...], after: tuple[str, ...], attributes: Mapping[str, Value]
) -> dict[str, tuple[str, ...]]:
    if len(before) != 2 or not after:
        raise ShapeError("takes `[channels, patch -> width]`, such as `patch_embed[Z, P -> D]`")
    weights = {"weight": (*after, before[0], before[1], before[1])}
    return {**weights, "bias": after} if attributes.get("bias") else weights


EMBEDDING = Operator(
    name="embedding",
    summary="Row `ids` of the table; an id below 0 reads row 0.",
    inputs=(Operand("ids"),),
    weights=(Operand("weight"),),
    shape_rule=_embedding,
    weight_rule=_embedding_weights,
)
LINEAR = Operator(
    name="linear",
    summary="`x · weightᵀ + bias`: the contracted axes give way to the result axes in place.",
    inputs=(Operand("x"),),
    weights=(Operand("weight"), Operand("bias", absent="there is no bias")),
    attributes=(BIAS, CONTRACTED),
    shape_rule=_linear,
    weight_rule=_linear_weights,
)
EXPERT_LINEAR = Operator(
    name="expert_linear",
    summary="A linear with the weight of each selected expert; adds the axis of `ids` to x.",
    inputs=(
        Operand("x"),
        Operand("weight"),
        Operand("ids"),
        Operand("bias", absent="there is no bias"),
    ),
    shape_rule=_expert_linear,
)
PATCH_EMBED = Operator(
    name="patch_embed",
    summary="A linear over square patches of an image, in row-major order of patches.",
    inputs=(Operand("pixels"),),
    weights=(Operand("weight"), Operand("bias", absent="there is no bias")),
    attributes=(BIAS,),
    shape_rule=_patch_embed,
    weight_rule=_patch_weights,
)
