"""Axes of written shapes: names in order, and their sizes in an instance."""

from cke.dsl import syntax
from cke.dsl.scope import Instance
from cke.errors import CkeError, Diagnostic, Span
from cke.schemas.ir import Dim, TensorType


def axis_names(dimensions: tuple[syntax.Dimension, ...]) -> tuple[str, ...]:
    """Return the axes of a shape, products laid out one after the other."""
    for dimension in dimensions:
        if len(dimension.terms) > 1:
            raise bad_shape(dimension.span, "a sum belongs to a stored layout, not to a type")
    return tuple(
        atom_name(atom)
        for dimension in dimensions
        for product in dimension.terms
        for atom in product.atoms
    )


def atom_name(atom: syntax.AxisAtom) -> str:
    """Return the name of one axis; a fraction keeps its divisor (`E/2`)."""
    match atom:
        case syntax.AxisName(name=name) | syntax.AxisPairs(name=name):
            return name
        case syntax.AxisFraction(name=name, divisor=divisor):
            return f"{name}/{divisor}"
        case syntax.AxisLiteral(size=size):
            return str(size)
        case syntax.AxisGroup():
            raise bad_shape(atom.span, "a sum belongs to a stored layout, not to a type")


def typed(axes: tuple[str, ...], instance: Instance, dtype: str, span: Span) -> TensorType:
    """Return the type with the sizes of this instance; duplicate axes are an error."""
    check_distinct(axes, span)
    sizes = tuple(axis_size(axis, instance, span) for axis in axes)
    return TensorType(axes=axes, shape=sizes, dtype=dtype)


def check_distinct(axes: tuple[str, ...], span: Span) -> None:
    """Refuse an axis that a shape names twice."""
    if len(set(axes)) != len(axes):
        twice = next(axis for axis in axes if axes.count(axis) > 1)
        raise bad_shape(span, f"axis `{twice}` stands twice in [{', '.join(axes)}]")


def axis_size(axis: str, instance: Instance, span: Span) -> Dim:
    """Return the size of an axis, a fraction or a literal."""
    if axis.isdigit():
        return int(axis)
    name, _, divisor = axis.partition("/")
    size = instance.size(name)
    if size is None:
        raise CkeError(
            Diagnostic(
                code="CKE211", span=span, message=f"`{name}` is no axis here: no config binds it"
            )
        )
    if not divisor:
        return size
    by = int(divisor) if divisor.isdigit() else instance.size(divisor)
    if not isinstance(size, int) or not isinstance(by, int) or size % by:
        raise bad_shape(span, f"`{axis}` expects a multiple of {by}, got {size}")
    return size // by


def bad_shape(span: Span, message: str) -> CkeError:
    """Return the error of a malformed shape."""
    return CkeError(Diagnostic(code="CKE210", span=span, message=message))
