"""The attention operators: sdpa, and append to a cache."""

from collections.abc import Mapping

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import (
    Types,
    need,
    need_float,
    need_int,
    optional,
    same_dtype,
    same_size,
    text,
)
from cke.schemas.ir import TensorType, Value


def _check_heads(q: TensorType, k: TensorType, v: TensorType) -> None:
    """Check q [B, T, H, E], k [B, S, K, E] and v [B, S, K, ·] against each other."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        need_float(x, name)
        if len(x.axes) != 4:
            raise ShapeError(f"expects `{name}` with 4 axes [B, T, H, E], got {text(x.axes)}")
        same_dtype(q, x)
    if k.axes[:3] != v.axes[:3] or k.shape[:3] != v.shape[:3]:
        raise ShapeError(f"expects values over {text(k.axes[:3])}, got {text(v.axes)}")
    same_size(q.axes[0], q.shape[0], k.shape[0])
    if q.axes[3] != k.axes[3] and q.shape[3] != k.shape[3]:
        raise ShapeError(f"contracts {q.axes[3]}, got keys {text(k.axes)}")
    same_size(q.axes[3], q.shape[3], k.shape[3])
    heads, kv_heads = q.shape[2], k.shape[2]
    if not (isinstance(heads, int) and isinstance(kv_heads, int)) or heads % kv_heads:
        raise ShapeError(f"needs H a multiple of K, got {heads} query and {kv_heads} kv heads")


def _sdpa(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    q, k, v = need(inputs, 0, "q"), need(inputs, 1, "k"), need(inputs, 2, "v")
    _check_heads(q, k, v)
    sinks, valid = optional(inputs, 4), optional(inputs, 3)
    if valid is not None and valid.dtype != "bool":
        raise ShapeError(f"expects bool `valid`, got {valid.dtype}{text(valid.axes)}")
    if sinks is not None and sinks.shape != (q.shape[2],):
        raise ShapeError(f"expects one sink per query head, got {text(sinks.axes)}")
    if attributes.get("mask") == "causal" or attributes.get("window") is not None:
        need_int(need(inputs, 5, "positions"), "positions")
        need_int(need(inputs, 6, "key_positions"), "key_positions")
    scores = TensorType(
        axes=(q.axes[0], q.axes[2], q.axes[1], "S"),
        shape=(q.shape[0], q.shape[2], q.shape[1], k.shape[1]),
        dtype=q.dtype,
    )
    context = TensorType(
        axes=(*q.axes[:3], v.axes[3]), shape=(*q.shape[:3], v.shape[3]), dtype=q.dtype
    )
    return Inference((scores, scores, context))


def _append(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    positions = need(inputs, 0, "positions")
    need_int(positions, "positions")
    lanes = [need(inputs, index, "lane") for index in range(1, len(inputs))]
    if not lanes:
        raise ShapeError("needs at least one lane, got none")
    for lane in lanes:
        if lane.axes[:2] != positions.axes:
            raise ShapeError(f"appends along {text(positions.axes)}, got {text(lane.axes)}")
    grown = tuple(
        TensorType(
            axes=(lane.axes[0], "S", *lane.axes[2:]),
            shape=(lane.shape[0], "S", *lane.shape[2:]),
            dtype=lane.dtype,
        )
        for lane in lanes
    )
    keys = TensorType(axes=(positions.axes[0], "S"), shape=(positions.shape[0], "S"), dtype="i32")
    return Inference((*grown, keys))


SDPA = Operator(
    name="sdpa",
    summary="softcap(scale · q·k), masked by positions, softmax over S, and the mean of values.",
    inputs=(
        Operand("q"),
        Operand("k"),
        Operand("v"),
        Operand("valid", absent="every key is valid"),
        Operand("sinks", absent="the softmax has no sink"),
        Operand("positions", absent="no mask reads positions", hidden=True),
        Operand("key_positions", absent="no mask reads positions", hidden=True),
    ),
    attributes=(
        Attribute(name="scale", kind="float", traced=True),
        Attribute(name="softcap", kind="float", default=None, optional=True),
        Attribute(name="mask", kind="choice", alternatives=("causal", "bidirectional")),
        Attribute(name="window", kind="int", default=None, optional=True),
        Attribute(
            name="head_map",
            kind="choice",
            default="grouped",
            alternatives=("grouped", "interleaved"),
        ),
    ),
    results=(Operand("scores"), Operand("probabilities"), Operand("context")),
    shape_rule=_sdpa,
)
APPEND = Operator(
    name="append",
    summary="Writes the rows with a position to the cache; gives all its rows over S.",
    inputs=(Operand("positions", hidden=True), Operand("lanes", variadic=True)),
    attributes=(
        Attribute(name="lanes", kind="list", hidden=True, source="slot.lanes"),
        Attribute(
            name="window",
            kind="int",
            default=None,
            optional=True,
            hidden=True,
            source="slot.window",
        ),
    ),
    results=(Operand("lanes", variadic=True), Operand("key_positions", hidden=True)),
    shape_rule=_append,
    state="cache",
)
