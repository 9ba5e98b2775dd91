"""Stored layouts as the syntax tree has them → the layouts that transforms are made of."""

from cke.codegen.layouts import Atom, Axis, Group, Layout, Literal, Minor, Pairs
from cke.dsl import syntax


def written_layout(shape: syntax.Shape) -> Layout:
    """Return the layout after `as`."""
    return tuple(tuple(_product(term) for term in dimension.terms) for dimension in shape.axes)


def declared_layout(grouped: tuple[tuple[str, ...], ...]) -> Layout:
    """Return the layout of a source without `as`: axes of a group are one dimension."""
    return tuple((tuple(map(_axis, group)),) for group in grouped)


def _product(product: syntax.Product) -> tuple[Atom, ...]:
    return tuple(map(_atom, product.atoms))


def _atom(atom: syntax.AxisAtom) -> Atom:
    match atom:
        case syntax.AxisName(name=name):
            return Axis(name)
        case syntax.AxisFraction(name=name, divisor=str() as by):
            return Minor(name, by)
        case syntax.AxisFraction(name=name, divisor=divisor):
            return Axis(f"{name}/{divisor}")
        case syntax.AxisLiteral(size=size):
            return Literal(size)
        case syntax.AxisPairs(name=name):
            return Pairs(name)
        case syntax.AxisGroup(terms=terms):
            return Group(tuple(map(_product, terms)))


def _axis(name: str) -> Atom:
    return Axis(name)
