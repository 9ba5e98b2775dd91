"""The float64 definition of every operator, in NumPy.

`REFERENCES` maps an operator's name to its definition, called as
``f(*inputs, *weights, **attributes, **layout)`` with a slot first for a stateful operator. Floats
are float64 throughout, ids and positions stay integers, and nothing is rounded except where an
attribute says so. Non-goal: speed beyond vectorised NumPy.
"""

from collections.abc import Callable
from typing import Any

from cke.kernel_registry.references import (
    attention,
    elementwise,
    movement,
    normalisation,
    position,
    projection,
    routing,
    sequence,
)

REFERENCES: dict[str, Callable[..., Any]] = {
    "embedding": projection.embedding,
    "linear": projection.linear,
    "expert_linear": projection.expert_linear,
    "patch_embed": projection.patch_embed,
    "rms_norm": normalisation.rms_norm,
    "layer_norm": normalisation.layer_norm,
    "rope": position.rope,
    "sdpa": attention.sdpa,
    "append": attention.append,
    "silu": elementwise.silu,
    "gelu_tanh": elementwise.gelu_tanh,
    "gelu_erf": elementwise.gelu_erf,
    "gelu_quick": elementwise.gelu_quick,
    "relu": elementwise.relu,
    "relu_squared": elementwise.relu_squared,
    "sigmoid": elementwise.sigmoid,
    "tanh": elementwise.tanh,
    "softplus": elementwise.softplus,
    "clip": elementwise.clip,
    "add": elementwise.add,
    "subtract": elementwise.subtract,
    "multiply": elementwise.multiply,
    "scale": elementwise.scale,
    "softcap": elementwise.softcap,
    "route": routing.route,
    "combine": routing.combine,
    "depthwise_conv": sequence.depthwise_conv,
    "ssd_scan": sequence.ssd_scan,
    "split": movement.split,
    "concat": movement.concat,
    "repeat": movement.repeat,
    "take": movement.take,
}
