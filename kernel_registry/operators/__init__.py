"""The operator table: the closed vocabulary of the circuit language.

`OPERATORS` holds every row by name, `ARITHMETIC` the row of each sign, `SCALINGS` the parameters
of the rope scalings, `SPELLINGS` the external names of every closed alternative. Goal: no import
of jax or NumPy. Non-goal: arithmetic; the float64 definitions are ``kernel_registry.references``.
"""

from collections.abc import Mapping

from cke.kernel_registry.operators import (
    attention,
    elementwise,
    movement,
    normalisation,
    position,
    projection,
    routing,
    sequence,
)
from cke.kernel_registry.operators.base import (
    Attribute,
    Inference,
    Operand,
    Operator,
    ShapeError,
)
from cke.kernel_registry.operators.elementwise import ARITHMETIC
from cke.kernel_registry.operators.position import SCALINGS, scaling
from cke.schemas.ir import Value

__all__ = [
    "ACTIVATIONS",
    "ARITHMETIC",
    "OPERATORS",
    "SCALINGS",
    "SPELLINGS",
    "Attribute",
    "Inference",
    "Operand",
    "Operator",
    "ShapeError",
    "kernel_arguments",
    "scaling",
]

_ROWS = (
    projection.EMBEDDING,
    projection.LINEAR,
    projection.EXPERT_LINEAR,
    normalisation.RMS_NORM,
    normalisation.LAYER_NORM,
    position.ROPE,
    attention.SDPA,
    attention.APPEND,
    *elementwise.ACTIVATIONS,
    elementwise.CLIP,
    elementwise.ADD,
    elementwise.SUBTRACT,
    elementwise.MULTIPLY,
    elementwise.SCALE,
    elementwise.SOFTCAP,
    routing.ROUTE,
    routing.COMBINE,
    sequence.DEPTHWISE_CONV,
    sequence.SSD_SCAN,
    projection.PATCH_EMBED,
    movement.SPLIT,
    movement.CONCAT,
    movement.REPEAT,
    movement.TAKE,
)
OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}

ACTIVATIONS: tuple[str, ...] = tuple(row.name for row in elementwise.ACTIVATIONS)
"""The operators that a circuit may take as `act`."""

SPELLINGS: dict[str, dict[str, str]] = {
    "activations": {name: row.name for row in elementwise.ACTIVATIONS for name in row.spellings},
    "rope_kinds": dict(position.SCALING_SPELLINGS),
    "pairings": dict(position.ROPE.attribute("pairing").spellings),
}
"""External spellings of closed alternatives, as maps that a circuit names after `via`."""


def kernel_arguments(
    operator: Operator, attributes: Mapping[str, Value], layout: Mapping[str, Value]
) -> dict[str, Value]:
    """The keyword arguments of a kernel or reference: layout, and what it needs of attributes.

    Axis names stay out, and so do attributes that say which weights there are (`bias: true`).
    """
    dropped = {a.name for a in operator.attributes if a.kind in ("axis", "axes")}
    dropped |= {weight.name for weight in operator.weights}
    own = {name: value for name, value in attributes.items() if name not in dropped}
    return {**own, **layout}
