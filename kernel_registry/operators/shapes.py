"""What shape rules share: text of axes, operands by position, tails and alignment by name."""

from collections.abc import Sequence

from cke.kernel_registry.operators.base import ShapeError
from cke.schemas.ir import Dim, TensorType, Value

FLOATS = ("f32", "bf16", "f16", "f64")
Types = Sequence[TensorType | None]


def text(axes: Sequence[str]) -> str:
    """The axes as a reader writes them: `[B, T, D]`."""
    return f"[{', '.join(axes)}]"


def need(types: Types, index: int, name: str) -> TensorType:
    """The operand at `index`; a ShapeError when it is absent."""
    found = types[index] if index < len(types) else None
    if found is None:
        raise ShapeError(f"needs `{name}`, got none")
    return found


def optional(types: Types, index: int) -> TensorType | None:
    """The operand at `index`, or None."""
    return types[index] if index < len(types) else None


def need_float(x: TensorType, name: str) -> None:
    """Refuse an operand that is not of a float dtype."""
    if x.dtype not in FLOATS:
        raise ShapeError(f"expects floats for `{name}`, got {x.dtype}{text(x.axes)}")


def need_int(x: TensorType, name: str) -> None:
    """Refuse an operand that is not of an integer dtype."""
    if x.dtype != "i32":
        raise ShapeError(f"expects integers for `{name}`, got {x.dtype}{text(x.axes)}")


def same_dtype(a: TensorType, b: TensorType) -> None:
    """Refuse two dtypes: nothing is promoted without a numerics row."""
    if a.dtype != b.dtype:
        raise ShapeError(f"meets {a.dtype} and {b.dtype}: a numerics row must say how")


def same_size(axis: str, a: Dim, b: Dim) -> None:
    """Refuse one axis of two sizes."""
    if a != b:
        raise ShapeError(f"expects one size of {axis}, got {a} and {b}")


def tail(x: TensorType, axes: Sequence[str], sizes: Sequence[Dim], verb: str) -> int:
    """Where `axes` start in `x`, as a run in that order; a ShapeError that says what `verb`s."""
    wanted = tuple(axes)
    for start in range(len(x.axes) - len(wanted), -1, -1):
        if x.axes[start : start + len(wanted)] == wanted:
            for axis, a, b in zip(wanted, x.shape[start:], sizes, strict=False):
                same_size(axis, b, a)
            return start
    raise ShapeError(f"{verb} {text(wanted)}, got {text(x.axes)}")


def align(a: TensorType, b: TensorType) -> TensorType:
    """The type that two operands broadcast to by axis name; the wider operand gives the order."""
    same_dtype(a, b)
    first, second = (b, a) if set(a.axes) < set(b.axes) else (a, b)
    sizes = dict(zip(first.axes, first.shape, strict=True))
    for axis, size in zip(second.axes, second.shape, strict=True):
        same_size(axis, sizes.setdefault(axis, size), size)
    return TensorType(axes=tuple(sizes), shape=tuple(sizes.values()), dtype=a.dtype)


def placed(x: TensorType, result: TensorType) -> list[Value]:
    """For each axis of `x`, its place among the axes of `result`."""
    return [result.axes.index(axis) for axis in x.axes]
