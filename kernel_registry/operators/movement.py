"""Operators that move axes and compute nothing: split, concat, repeat and take."""

from collections.abc import Mapping, Sequence

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import Types, need, same_dtype, same_size, text
from cke.schemas.ir import Dim, TensorType, Value

AXIS = Attribute(name="axis", kind="axis")


def _axis(x: TensorType, axis: str, verb: str) -> int:
    if axis not in x.axes:
        raise ShapeError(f"{verb} {axis}, got {text(x.axes)}")
    return x.axes.index(axis)


def _split(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, sizes = need(inputs, 0, "x"), list(attributes["sizes"])
    index = _axis(x, attributes["axis"], "splits")
    if x.shape[index] != sum(sizes):
        raise ShapeError(f"splits {attributes['axis']} of {x.shape[index]}, got sizes {sizes}")
    results = tuple(
        TensorType(
            axes=x.axes, shape=(*x.shape[:index], size, *x.shape[index + 1 :]), dtype=x.dtype
        )
        for size in sizes
    )
    return Inference(results, {"axis": index})


def _own_axis(x: TensorType, others: Sequence[TensorType], axis: str) -> str:
    """The axis of `x` that is concatenated: `axis`, or the one that the others lack."""
    if axis in x.axes:
        return axis
    own = [a for a in x.axes if not all(a in other.axes for other in others)]
    if len(own) != 1:
        raise ShapeError(f"concatenates {axis}, got {text(x.axes)}")
    return own[0]


def _renamed(operands: Sequence[TensorType], axis: str) -> list[tuple[str, ...]]:
    """The axes of each operand, its own concatenated axis renamed to `axis`."""
    rank = max(len(x.axes) for x in operands)
    full = [x for x in operands if len(x.axes) == rank]
    names = []
    for x in operands:
        own = axis
        if len(x.axes) == rank:
            own = _own_axis(x, [other for other in full if other is not x], axis)
        names.append(tuple(axis if a == own else a for a in x.axes))
    return names


def _concat(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    axis = attributes["axis"]
    operands = [need(inputs, i, "x") for i in range(len(inputs))]
    names = _renamed(operands, axis)
    axes = max(names, key=len)
    if axis not in axes:
        raise ShapeError(f"concatenates {axis}, got {text(axes)}")
    sizes: dict[str, Dim] = {}
    for x, own in zip(operands, names, strict=True):
        same_dtype(operands[0], x)
        here = dict(zip(own, x.shape, strict=True))
        size = here.pop(axis, 1)
        sizes[axis] = _sum(axis, sizes[axis], size) if axis in sizes else size
        for name, other in here.items():
            if name not in axes:
                raise ShapeError(f"concatenates over {text(axes)}, got {text(own)}")
            same_size(name, sizes.setdefault(name, other), other)
    shape = tuple(sizes[a] for a in axes)
    layout: dict[str, Value] = {"axis": axes.index(axis)}
    if any(own != axes for own in names):
        layout["places"] = [[axes.index(a) for a in own] for own in names]
    return Inference((TensorType(axes=axes, shape=shape, dtype=operands[0].dtype),), layout)


def _sum(axis: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    raise ShapeError(f"concatenates {axis}: needs its sizes, got {a} and {b}")


def _repeat(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, axis = need(inputs, 0, "x"), attributes["axis"]
    if axis in x.axes:
        raise ShapeError(f"adds the axis {axis}, got {text(x.axes)} that has it")
    place = len(x.axes) - 1
    axes = (*x.axes[:place], axis, *x.axes[place:])
    shape = (*x.shape[:place], attributes["size"], *x.shape[place:])
    return Inference((TensorType(axes=axes, shape=shape, dtype=x.dtype),), {"axis": place})


def _take(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, at = need(inputs, 0, "x"), attributes["at"]
    index = _axis(x, attributes["axis"], "takes one of")
    size = x.shape[index]
    if isinstance(size, int) and not -size <= at < size:
        raise ShapeError(f"takes row {at} of {attributes['axis']}, got {size} rows")
    axes = x.axes[:index] + x.axes[index + 1 :]
    shape = x.shape[:index] + x.shape[index + 1 :]
    return Inference((TensorType(axes=axes, shape=shape, dtype=x.dtype),), {"axis": index})


SPLIT = Operator(
    name="split",
    summary="Cuts an axis into pieces of the given sizes.",
    inputs=(Operand("x"),),
    attributes=(AXIS, Attribute(name="sizes", kind="list")),
    results=(Operand("pieces", variadic=True),),
    shape_rule=_split,
)
CONCAT = Operator(
    name="concat",
    summary="Joins operands along an axis; one without it is one row, repeated over the rest.",
    inputs=(Operand("pieces", variadic=True),),
    attributes=(AXIS,),
    shape_rule=_concat,
)
REPEAT = Operator(
    name="repeat",
    summary="Adds an axis before the last one, with equal values along it.",
    inputs=(Operand("x"),),
    attributes=(AXIS, Attribute(name="size", kind="int", hidden=True, source="axis.size")),
    shape_rule=_repeat,
)
TAKE = Operator(
    name="take",
    summary="One index of an axis, which goes away.",
    inputs=(Operand("x"),),
    attributes=(AXIS, Attribute(name="at", kind="int", alternatives=(0, -1))),
    shape_rule=_take,
)
