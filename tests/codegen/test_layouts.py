"""Stored layouts: each transform list undoes how the file stores the weight."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cke.codegen.layouts import (
    Atom,
    Axis,
    Group,
    Layout,
    LayoutError,
    Literal,
    Minor,
    Pairs,
    describe,
    file_shape,
    transforms,
    without_axes,
)
from cke.schemas.bindings import Transform

H, K, E, D, F, N, G, P, X, M, C, U = (Axis(name) for name in "HKEDFNGPXMCU")
SIZES = {"H": 4, "K": 2, "E": 6, "D": 10, "F": 14, "N": 6, "G": 2, "P": 5, "X": 3, "M": 7} | {
    "C": 9,
    "U": 8,
}
THREE, TWO, ONE = Literal(3), Literal(2), Literal(1)


def apply(array: Any, steps: tuple[Transform, ...]) -> Any:
    for step in steps:
        match step.kind:
            case "reshape":
                array = array.reshape(step.arguments["shape"])
            case "transpose":
                array = array.transpose(step.arguments["axes"])
            case "slice":
                bounds = slice(step.arguments["start"], step.arguments["stop"])
                array = array[(slice(None),) * step.arguments["axis"] + (bounds,)]
    return array


def semantic(axes: str, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal([SIZES[axis] for axis in axes])


def product(*atoms: Atom) -> tuple[tuple[Atom, ...], ...]:
    return (atoms,)


def test_rope_pairs_are_undone_per_head() -> None:
    layout: Layout = (product(H, Pairs("E")), product(D))
    weight = semantic("HED")
    stored = weight.reshape(4, 2, 3, 10).swapaxes(1, 2).reshape(24, 10)
    steps = transforms(layout, ("H", "E", "D"), SIZES)
    assert np.array_equal(apply(stored, steps), weight)
    assert {step.purpose for step in steps} == {"rope_pairs"}


def test_a_transposed_fused_projection_gives_each_member() -> None:
    layout: Layout = (product(D), product(THREE, H, E))
    members = [semantic("HED", seed) for seed in range(3)]
    stored = np.concatenate([each.reshape(24, 10).T for each in members], axis=1)
    for number, weight in enumerate(members):
        steps = transforms(layout, ("H", "E", "D"), SIZES, number, 3)
        assert np.array_equal(apply(stored, steps), weight)


def test_a_sum_gives_each_member_its_own_extent() -> None:
    layout: Layout = (((H, E), (K, E), (K, E)), product(D))
    axes = [("H", "E", "D"), ("K", "E", "D"), ("K", "E", "D")]
    members = [semantic("".join(each), seed) for seed, each in enumerate(axes)]
    stored = np.concatenate([each.reshape(-1, 10) for each in members])
    for number, weight in enumerate(members):
        steps = transforms(layout, axes[number], SIZES, number, 3)
        assert np.array_equal(apply(stored, steps), weight)


def test_members_may_alternate_per_head_or_per_row() -> None:
    members = [semantic("HED", seed) for seed in range(3)]
    stored = np.stack(members, axis=1).reshape(-1, 10)
    for number, weight in enumerate(members):
        steps = transforms((product(H, THREE, E), product(D)), ("H", "E", "D"), SIZES, number, 3)
        assert np.array_equal(apply(stored, steps), weight)
    pair = [semantic("FD", seed) for seed in range(2)]
    stored = np.stack(pair, axis=1).reshape(-1, 10)
    for number, weight in enumerate(pair):
        steps = transforms((product(F, TWO), product(D)), ("F", "D"), SIZES, number, 2)
        assert np.array_equal(apply(stored, steps), weight)


def test_a_sum_inside_a_product_splits_every_head() -> None:
    layout: Layout = (product(H, Group(((N,), (U,)))), product(C))
    first, second = semantic("HNC", 1), semantic("HUC", 2)
    stored = np.concatenate([first, second], axis=1).reshape(-1, 9)
    for number, (weight, axes) in enumerate([(first, "HNC"), (second, "HUC")]):
        steps = transforms(layout, tuple(axes), SIZES, number, 2)
        assert np.array_equal(apply(stored, steps), weight)


def test_an_axis_may_be_stored_in_two_parts() -> None:
    layout: Layout = (product(G), product(Minor("N", "G"), P))
    weight = semantic("NP")
    stored = weight.reshape(2, 15)
    assert np.array_equal(apply(stored, transforms(layout, ("N", "P"), SIZES)), weight)


def test_axes_of_equal_size_may_differ_in_name() -> None:
    sizes = {**SIZES, "K": 4}
    layout: Layout = (product(D), product(THREE, H, E))
    steps = transforms(layout, ("K", "E", "D"), sizes, 1, 3)
    assert apply(np.zeros((10, 72)), steps).shape == (4, 6, 10)


def test_a_bias_loses_the_contracted_axes_and_unit_dimensions() -> None:
    fused: Layout = (product(D), product(THREE, H, E))
    assert describe(without_axes(fused, ("D",))) == "[3 H E]"
    assert describe(without_axes((product(F), product(ONE), product(D)), ("D",))) == "[F]"


def test_a_split_needs_as_many_terms_as_names() -> None:
    text = r"^split of 3 names needs a sum of 3 terms or a literal 3$"
    with pytest.raises(LayoutError, match=text):
        transforms((((H, E), (K, E)), product(D)), ("H", "E", "D"), SIZES, 0, 3)


def test_every_axis_of_the_weight_stands_in_the_layout() -> None:
    with pytest.raises(LayoutError, match=r"^`E` is not in the layout$"):
        transforms((product(H), product(D)), ("H", "E", "D"), SIZES)
    with pytest.raises(LayoutError, match=r"^`F` is not an axis of the weight$"):
        transforms((product(H, F), product(D)), ("H", "D"), SIZES)


AXES = st.permutations(["H", "E", "D", "F"]).flatmap(
    lambda order: st.integers(1, 4).map(lambda count: order[:count])
)


@given(axes=AXES, data=st.data())
def test_any_order_and_grouping_is_a_bijection(axes: list[str], data: st.DataObject) -> None:
    order = data.draw(st.permutations(axes))
    cuts = data.draw(st.lists(st.booleans(), min_size=len(axes) - 1, max_size=len(axes) - 1))
    pairs = data.draw(st.booleans())
    dimensions: list[list[Atom]] = [[]]
    for place, name in enumerate(order):
        dimensions[-1].append(Pairs(name) if pairs and name == "E" else Axis(name))
        if place < len(cuts) and cuts[place]:
            dimensions.append([])
    layout: Layout = tuple(product(*atoms) for atoms in dimensions)
    weight = np.arange(np.prod([SIZES[axis] for axis in axes])).reshape([SIZES[a] for a in axes])
    stored = _store(weight, axes, list(order), pairs).reshape(file_shape(layout, SIZES))
    assert np.array_equal(apply(stored, transforms(layout, tuple(axes), SIZES)), weight)


def _store(weight: Any, axes: list[str], order: list[str], pairs: bool) -> Any:
    array = weight.transpose([axes.index(name) for name in order])
    if pairs and "E" in order:
        place = order.index("E")
        shape = array.shape
        halves = array.reshape(*shape[:place], 2, shape[place] // 2, *shape[place + 1 :])
        array = halves.swapaxes(place, place + 1)
    return array


@given(st.integers(2, 5), st.booleans())
def test_the_members_of_a_tensor_cover_it_once(count: int, transposed: bool) -> None:
    shared = product(Literal(count), H, E)
    layout: Layout = (product(D), shared) if transposed else (shared, product(D))
    stored = np.arange(np.prod(file_shape(layout, SIZES))).reshape(file_shape(layout, SIZES))
    parts = [
        apply(stored, transforms(layout, ("H", "E", "D"), SIZES, number, count)).ravel()
        for number in range(count)
    ]
    assert sorted(np.concatenate(parts)) == list(range(stored.size))
