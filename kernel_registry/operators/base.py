"""The form of an operator: operands, attributes with their alternatives, and a shape rule.

An operator is one row of the closed vocabulary. Its float64 definition is the function of the
same name in ``kernel_registry/references``; a kernel implements it under a contract.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from cke.schemas.ir import TensorType, Value


class ShapeError(Exception):
    """Operands that an operator does not take; the caller adds the span and the code."""


class Operand(msgspec.Struct, frozen=True):
    """An input, weight or result by name; `absent` says what the operator is without it.

    An operand with no `absent` is required. A `hidden` one is not written in a circuit:
    instantiation supplies it (positions, key positions) or gives it a name (key positions of
    `append`).
    """

    name: str
    absent: str | None = None
    variadic: bool = False
    hidden: bool = False


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """A named constant. `kind` is int, float, bool, str, choice, scaling, list, axis or axes.

    Attributes of kind `axis` and `axes` hold axis names: the shape rule alone reads them, and
    `layout` carries what a kernel needs of them. A `hidden` attribute is not written in a circuit:
    instantiation fills it in from what `source` says (`slot.lanes`, `slot.window`, `slot.keep`,
    `slot.axes` of the first lane, `axis.size` of the attribute `axis`, `constructor.before` for the
    axes before `->`).

    `alternatives` are the values that a counterfactual may try (all of them for a choice);
    `spellings` maps external names (HF, GGUF) to alternatives; `traced` attributes may differ
    between layers of one kind, as arguments of the generated function.
    """

    name: str
    kind: str
    default: Value = msgspec.UNSET
    optional: bool = False
    alternatives: tuple[Value, ...] = ()
    spellings: Mapping[str, str] = {}
    traced: bool = False
    hidden: bool = False
    source: str | None = None


class Inference(msgspec.Struct, frozen=True):
    """What a shape rule derives: result types, and `layout` arguments for kernel and reference."""

    results: tuple[TensorType, ...]
    layout: dict[str, Value] = {}


ShapeRule = Callable[
    [Sequence[TensorType | None], Sequence[TensorType | None], Mapping[str, Value]], Inference
]
"""(inputs, weights, attributes) → Inference; raises ShapeError. Dtypes are those of the inputs."""

WeightRule = Callable[
    [tuple[str, ...], tuple[str, ...], Mapping[str, Value]], dict[str, tuple[str, ...]]
]
"""(axes before `->`, axes after it, attributes) → axes of each weight, by operand name."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the operator table.

    `weight_rule` is set when the operator is also a part constructor (`linear[D -> H E]`).
    `state` is the kind of the slot that it takes as its first argument, if any. `identity_when`
    says for which attributes the operator is the identity, so that its result is an alias.
    `spellings` are the names that HF and GGUF give it. A kernel or reference is called with the
    slot, when there is one, before its inputs, and gives the new slot before its results.
    """

    name: str
    summary: str
    inputs: tuple[Operand, ...]
    weights: tuple[Operand, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    results: tuple[Operand, ...] = (Operand("output"),)
    shape_rule: ShapeRule
    weight_rule: WeightRule | None = None
    state: str | None = None
    identity_when: Callable[[Mapping[str, Value]], bool] | None = None
    interior: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()

    def attribute(self, name: str) -> Attribute:
        """The declared attribute of that name; KeyError when there is none."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        raise KeyError(name)
