"""Layouts of tensors on disk, and the transforms from them to the declared axes.

A layout is a list of file dimensions; each is a sum of products of atoms, such as
``[H pairs(E), D]`` or ``[H E + K E + K E, D]``. Every transform is a bijection between elements
of a slice of the file's tensor and the declared tensor. Non-goal: reading tensors.
"""

from collections.abc import Iterable, Mapping
from math import prod

import msgspec

from cke.schemas.bindings import Transform


class LayoutError(Exception):
    """A layout that does not fit the declared axes; the caller adds the span and the code."""


class Axis(msgspec.Struct, frozen=True):
    """A whole axis by name."""

    name: str


class Minor(msgspec.Struct, frozen=True):
    """The inner part of an axis whose outer part has the size of `by` (`N/G`)."""

    name: str
    by: str


class Literal(msgspec.Struct, frozen=True):
    """A constant extent: 1, or the number of names that share the tensor."""

    size: int


class Pairs(msgspec.Struct, frozen=True):
    """An axis stored as pairs of its first and second half (`pairs(E)`)."""

    name: str


class Group(msgspec.Struct, frozen=True):
    """A sum inside a product (`H (N + U)`)."""

    terms: tuple[tuple["Atom", ...], ...]


Atom = Axis | Minor | Literal | Pairs | Group
Dimension = tuple[tuple[Atom, ...], ...]
Layout = tuple[Dimension, ...]


class Factor(msgspec.Struct, frozen=True):
    """A run of elements in file order: part `part` of axis `name` (0 is the outermost)."""

    name: str
    part: int
    size: int


class _Cut(msgspec.Struct, frozen=True):
    """Which part of a file dimension belongs to one name."""

    dimension: int
    before: int
    start: int
    stop: int
    total: int
    after: int


def file_shape(layout: Layout, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape on disk that the layout describes."""
    return tuple(sum(_extent(term, sizes) for term in dimension) for dimension in layout)


def transforms(
    layout: Layout,
    axes: tuple[str, ...],
    sizes: Mapping[str, int],
    member: int = 0,
    members: int = 1,
) -> tuple[Transform, ...]:
    """Return the steps from the file's tensor to the declared axes of name `member`."""
    cut, dimensions = _choose(layout, sizes, member, members)
    factors = [
        factor for product in dimensions for atom in product for factor in _factors(atom, sizes)
    ]
    order = _order(factors, axes, sizes)
    target = [sizes[axis] for axis in axes]
    steps = [*_slice(cut, file_shape(layout, sizes))]
    shape = _sliced_shape(cut, file_shape(layout, sizes))
    purpose = _purpose(dimensions, order)
    if order != list(range(len(factors))):
        steps += _reshape(shape, [factor.size for factor in factors], purpose)
        steps.append(Transform(kind="transpose", arguments={"axes": order}, purpose=purpose))
        shape = [factors[index].size for index in order]
    steps += _reshape(shape, target, purpose)
    return tuple(steps)


def without_axes(layout: Layout, dropped: Iterable[str]) -> Layout:
    """Return the layout of a bias: the input axes are gone, and dimensions that held only them."""
    gone = set(dropped)
    kept = (tuple(_without(term, gone) for term in dimension) for dimension in layout)
    return tuple(dimension for dimension in kept if all(map(_names_axis, dimension)))


def _names_axis(term: tuple[Atom, ...]) -> bool:
    return any(not isinstance(atom, Literal) for atom in term)


def _without(term: tuple[Atom, ...], gone: set[str]) -> tuple[Atom, ...]:
    return tuple(atom for atom in term if getattr(atom, "name", None) not in gone)


def _extent(term: tuple[Atom, ...], sizes: Mapping[str, int]) -> int:
    return prod(_size(atom, sizes) for atom in term)


def _size(atom: Atom, sizes: Mapping[str, int]) -> int:
    match atom:
        case Literal(size):
            return size
        case Group(terms):
            return sum(_extent(term, sizes) for term in terms)
        case Minor(name, by):
            return sizes[name] // sizes[by]
        case Axis(name) | Pairs(name):
            return sizes[name]


def _choose(
    layout: Layout, sizes: Mapping[str, int], member: int, members: int
) -> tuple[_Cut | None, list[tuple[Atom, ...]]]:
    """Return what to cut, and the product that each file dimension then is."""
    if members == 1:
        if any(len(dimension) != 1 for dimension in layout):
            raise LayoutError("a sum belongs to several names")
        return None, [dimension[0] for dimension in layout]
    found = [
        (place, dimension, position)
        for place, dimension in enumerate(layout)
        for position in _split_positions(dimension, members)
    ]
    if len(found) != 1:
        raise LayoutError(
            f"split of {members} names needs a sum of {members} terms or a literal {members}"
        )
    place, dimension, position = found[0]
    cut, product = _cut(place, dimension, position, sizes, member)
    return cut, [product if i == place else other[0] for i, other in enumerate(layout)]


def _split_positions(dimension: Dimension, members: int) -> list[int | None]:
    """Return where the dimension tells the names apart: None is its own sum."""
    if len(dimension) > 1:
        return [None] if len(dimension) == members else []
    product = dimension[0]
    sums = [i for i, a in enumerate(product) if isinstance(a, Group) and len(a.terms) == members]
    return [*(sums or [i for i, atom in enumerate(product) if atom == Literal(members)])]


def _cut(
    place: int, dimension: Dimension, position: int | None, sizes: Mapping[str, int], member: int
) -> tuple[_Cut, tuple[Atom, ...]]:
    if position is None:
        terms = dimension
        before: tuple[Atom, ...] = ()
        after: tuple[Atom, ...] = ()
    else:
        product = dimension[0]
        before, atom, after = product[:position], product[position], product[position + 1 :]
        terms = atom.terms if isinstance(atom, Group) else ((),) * _size(atom, sizes)
    extents = [_extent(term, sizes) for term in terms]
    start = sum(extents[:member])
    cut = _Cut(
        dimension=place,
        before=_extent(before, sizes),
        start=start,
        stop=start + extents[member],
        total=sum(extents),
        after=_extent(after, sizes),
    )
    return cut, (*before, *terms[member], *after)


def _factors(atom: Atom, sizes: Mapping[str, int]) -> list[Factor]:
    match atom:
        case Literal(1):
            return []
        case Literal(size):
            raise LayoutError(f"the literal {size} names no axis")
        case Group():
            raise LayoutError("a sum belongs to several names")
        case Pairs(name):
            if sizes[name] % 2:
                raise LayoutError(f"`pairs({name})` needs an even size, got {sizes[name]}")
            return [Factor(name, 1, sizes[name] // 2), Factor(name, 0, 2)]
        case Minor(name, by):
            return [Factor(name, 1, sizes[name] // sizes[by])]
        case Axis(name):
            return [Factor(name, 0, sizes[name])]


def _order(factors: list[Factor], axes: tuple[str, ...], sizes: Mapping[str, int]) -> list[int]:
    """Return the file positions of the factors in the order of the declared axes."""
    names = _renamed(factors, axes, sizes)
    order = []
    for axis in axes:
        mine = [index for index, name in enumerate(names) if name == axis]
        mine.sort(key=lambda index: factors[index].part)
        if prod(factors[index].size for index in mine) != sizes[axis] or not mine:
            raise LayoutError(f"`{axis}` is not in the layout")
        order += mine
    if len(order) != len(factors):
        extra = next(name for name in names if name not in axes)
        raise LayoutError(f"`{extra}` is not an axis of the weight")
    return order


def _renamed(factors: list[Factor], axes: tuple[str, ...], sizes: Mapping[str, int]) -> list[str]:
    """Return the declared axis of each factor; axes of equal size may differ in name."""
    names = [factor.name for factor in factors]
    minors = {factor.name for factor in factors if factor.part == 1 and factor.size > 0}
    whole = [axis for axis in axes if axis not in names]
    for index, factor in enumerate(factors):
        if factor.name in axes:
            continue
        owner = next((n for n in minors if n in axes and _completes(n, factor, factors, sizes)), "")
        same = next((axis for axis in whole if sizes[axis] == factor.size), "")
        if owner:
            names[index] = owner
        elif same:
            names[index] = same
            whole.remove(same)
    return names


def _completes(name: str, factor: Factor, factors: list[Factor], sizes: Mapping[str, int]) -> bool:
    parts = [other for other in factors if other.name == name]
    return len(parts) == 1 and parts[0].size * factor.size == sizes[name]


def _slice(cut: _Cut | None, shape: tuple[int, ...]) -> list[Transform]:
    if cut is None:
        return []
    axis, scale, steps = cut.dimension, cut.after, []
    if cut.before > 1:
        split = [cut.before, cut.total * cut.after]
        inner = [*shape[:axis], *split, *shape[axis + 1 :]]
        steps.append(Transform(kind="reshape", arguments={"shape": inner}, purpose="split"))
        axis += 1
    bounds = {"axis": axis, "start": cut.start * scale, "stop": cut.stop * scale}
    return [*steps, Transform(kind="slice", arguments=bounds, purpose="split")]


def _sliced_shape(cut: _Cut | None, shape: tuple[int, ...]) -> list[int]:
    if cut is None:
        return [*shape]
    kept = (cut.stop - cut.start) * cut.after
    own = [kept] if cut.before == 1 else [cut.before, kept]
    return [*shape[: cut.dimension], *own, *shape[cut.dimension + 1 :]]


def _reshape(shape: list[int], target: list[int], purpose: str) -> list[Transform]:
    if shape == target:
        return []
    return [Transform(kind="reshape", arguments={"shape": target}, purpose=purpose)]


def _purpose(dimensions: list[tuple[Atom, ...]], order: list[int]) -> str:
    if any(isinstance(atom, Pairs) for product in dimensions for atom in product):
        return "rope_pairs"
    return "axes" if order == sorted(order) else "conv1d"


def describe(layout: Layout) -> str:
    """Return the layout as a circuit writes it: `[H pairs(E), D]`."""
    return f"[{', '.join(' + '.join(map(_term_text, dimension)) for dimension in layout)}]"


def _term_text(term: tuple[Atom, ...]) -> str:
    return " ".join(map(_atom_text, term))


def _atom_text(atom: Atom) -> str:
    match atom:
        case Axis(name):
            return name
        case Minor(name, by):
            return f"{name}/{by}"
        case Literal(size):
            return str(size)
        case Pairs(name):
            return f"pairs({name})"
        case Group(terms):
            return f"({' + '.join(map(_term_text, terms))})"
