"""The rope operator and the parameters of its frequency scalings."""

from collections.abc import Mapping

import msgspec

from cke.kernel_registry.operators.base import Attribute, Inference, Operand, Operator, ShapeError
from cke.kernel_registry.operators.shapes import Types, need, need_float, need_int, optional, text
from cke.schemas.ir import Value

SCALINGS: dict[str, tuple[Attribute, ...]] = {
    "linear": (Attribute(name="factor", kind="float"),),
    "llama3": (
        Attribute(name="factor", kind="float"),
        Attribute(name="low", kind="float"),
        Attribute(name="high", kind="float"),
        Attribute(name="original", kind="int"),
    ),
    "yarn": (
        Attribute(name="factor", kind="float"),
        Attribute(name="original", kind="int"),
        Attribute(name="beta_fast", kind="float", default=32.0),
        Attribute(name="beta_slow", kind="float", default=1.0),
        Attribute(name="attention_factor", kind="float", default=None, optional=True),
        Attribute(name="mscale", kind="float", default=None, optional=True),
        Attribute(name="mscale_all_dim", kind="float", default=None, optional=True),
        Attribute(name="truncate", kind="bool", default=True),
    ),
    "longrope": (
        Attribute(name="short", kind="list"),
        Attribute(name="long", kind="list"),
        Attribute(name="original", kind="int"),
        Attribute(name="factor", kind="float", default=None, optional=True),
        Attribute(name="attention_factor", kind="float", default=None, optional=True),
        Attribute(
            name="select",
            kind="choice",
            default="by_total_length",
            alternatives=("by_total_length", "short", "long"),
        ),
    ),
}
"""Parameters of each scaling. A value is `{"kind": "linear", "factor": 8.0}`, none is None."""

SCALING_SPELLINGS = {
    "none": "none",
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}


def scaling(kind: str, arguments: Mapping[str, Value]) -> dict[str, Value]:
    """The scaling's value with its defaults; a ShapeError names what is missing or unknown."""
    if kind not in SCALINGS:
        raise ShapeError(f"expects a scaling {' | '.join(SCALINGS)}, got `{kind}`")
    declared = {a.name: a for a in SCALINGS[kind]}
    for name in arguments:
        if name not in declared:
            raise ShapeError(f"`{kind}` has no parameter `{name}`: it takes {', '.join(declared)}")
    value: dict[str, Value] = {"kind": kind}
    for name, attribute in declared.items():
        given = arguments.get(name)
        value[name] = attribute.default if given is None else given
        if value[name] is msgspec.UNSET:
            raise ShapeError(f"`{kind}` needs `{name}`, got none")
    return value


def _rope(inputs: Types, weights: Types, attributes: Mapping[str, Value]) -> Inference:
    x, positions = need(inputs, 0, "x"), need(inputs, 1, "positions")
    need_float(x, "x")
    need_int(positions, "positions")
    count = len(positions.axes)
    if x.axes[:count] != positions.axes or len(x.axes) <= count:
        raise ShapeError(f"rotates the last axis over {text(positions.axes)}, got {text(x.axes)}")
    size = x.shape[-1]
    if not isinstance(size, int):
        raise ShapeError(f"needs the size of {x.axes[-1]}, got the symbol {size}")
    width = attributes.get("width")
    width = size if width is None else width
    if width % 2 or not 0 <= width <= size:
        raise ShapeError(f"rotates an even width of at most {size}, got {width}")
    factors = optional(inputs, 2)
    if factors is not None and factors.shape != (width // 2,):
        raise ShapeError(f"expects {width // 2} factors, got {text(factors.axes)}")
    value = attributes.get("scaling")
    if value is not None:
        scaling(value["kind"], {k: v for k, v in value.items() if k != "kind"})
    return Inference((x,), {"heads": len(x.axes) - count - 1})


ROPE = Operator(
    name="rope",
    summary="Rotates pairs of the last axis by position · base^(-2i/width), under a scaling.",
    inputs=(
        Operand("x"),
        Operand("positions"),
        Operand("factors", absent="frequencies are not divided by a table"),
    ),
    attributes=(
        Attribute(name="base", kind="float", alternatives=(1e4, 1.6e5, 5e5, 1e6, 5e6, 8e6, 1e7)),
        Attribute(name="width", kind="int", default=None, optional=True),
        Attribute(
            name="pairing",
            kind="choice",
            default="split_half",
            alternatives=("split_half", "interleaved"),
            spellings={"neox": "split_half", "norm": "interleaved", "gptj": "interleaved"},
        ),
        Attribute(
            name="output_order",
            kind="choice",
            default="as_input",
            alternatives=("as_input", "halves"),
        ),
        Attribute(
            name="scaling",
            kind="scaling",
            default=None,
            optional=True,
            alternatives=(None,),
            spellings=SCALING_SPELLINGS,
        ),
    ),
    shape_rule=_rope,
    identity_when=lambda attributes: attributes.get("width") == 0,
    interior=("table",),
)
