"""Linear layers as llama.cpp computes them: 8-bit activations against 4- or 8-bit weights.

Activations are rounded to Q8_0, 32 values to an f16 scale, and multiplied as integers with the
codes of the weight; the sums of a block are exact. A checkpoint exports no such scale, so that the
rounding is a substitution, and the inspection says so.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from jax import Array

from cke.fidelity.head import PHASE
from cke.fidelity.refusal import refuse
from cke.fidelity.routing import package_with
from cke.fidelity.subject import Subject
from cke.kernel_registry.kernels.linear import linear
from cke.runtime.placement import step_name

Activations = Literal["float", "q8_0"]
WIDTH = 32
"""Values of a block."""
KINDS = ("q8_0", "q4_0")
PARAMETER = "input_activation"
SPREAD = math.sqrt(WIDTH)
"""How far a block's scale stretches at most: its largest value over the root of its mean square."""


class IntegerWeight(NamedTuple):
    """A linear weight as codes i8[out…, blocks, 32] and scales f32[out…, blocks]."""

    codes: Array
    scales: Array


def integer_weight(values: np.ndarray, contract: int, kind: str) -> IntegerWeight | None:
    """Return the blocks whose values these are bit for bit; None where there are none."""
    form = GGMLQuantizationType[kind.upper()]
    out, width = values.shape[:-contract], math.prod(values.shape[-contract:])
    if width % WIDTH:
        return None
    rows = np.ascontiguousarray(values.reshape(-1, width), np.float32)
    blocks = np.asarray(quantize(rows, form))
    if not np.array_equal(np.asarray(dequantize(blocks, form), np.float32), rows):
        return None
    raw = blocks.reshape(len(rows), width // WIDTH, -1)
    scales = raw[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    codes = raw[..., 2:].view(np.int8)
    if kind == "q4_0":
        packed = raw[..., 2:]
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8) - np.int8(8)
    shape = (*out, width // WIDTH)
    return IntegerWeight(
        jax.device_put(codes.reshape(*shape, WIDTH)), jax.device_put(scales.reshape(shape))
    )


def quantised_rows(rows: Array) -> tuple[Array, Array]:
    """Return the codes, whole numbers as f32[n, blocks, 32], and the scales f32[n, blocks]."""
    parts = rows.astype(jnp.float32).reshape(rows.shape[0], -1, WIDTH)
    exact = jnp.max(jnp.abs(parts), axis=-1) / jnp.float32(127)
    inverse = jnp.where(exact == 0, jnp.float32(0), 1 / jnp.where(exact == 0, 1, exact))
    scaled = parts * inverse[..., None]
    codes = jnp.sign(scaled) * jnp.floor(jnp.abs(scaled) + jnp.float32(0.5))
    return codes, exact.astype(jnp.float16).astype(jnp.float32)


def integer_linear(
    x: Array,
    weight: "Array | IntegerWeight",
    bias: Array | None = None,
    *,
    contract: int = 1,
    start: int | None = None,
) -> Array:
    """The linear of `linear`; of an `IntegerWeight`, with the trailing axes rounded to Q8_0."""
    if not isinstance(weight, IntegerWeight):
        return linear(x, weight, bias, contract=contract, start=start)
    assert start is None or start + contract == x.ndim, "integer rows are trailing axes"
    leading, out = x.shape[: x.ndim - contract], weight.scales.shape[:-1]
    own = weight.codes.astype(jnp.float32).reshape(math.prod(out), -1, WIDTH)
    factors = weight.scales.reshape(math.prod(out), -1)
    codes, scales = quantised_rows(x.reshape(math.prod(leading), -1))
    # |sum| is at most 32 * 127 * 128, which f32 holds exactly in any order
    sums = jnp.einsum("nbi,obi->nob", codes, own, precision="highest")
    y = jnp.sum(sums * (scales[:, None, :] * factors[None]), axis=-1).reshape(*leading, *out)
    if bias is not None:
        y = y + bias.astype(jnp.float32).reshape((1,) * len(leading) + out)
    return y.astype(x.dtype)


def integer_linear_group(
    x: Array,
    weight: "Array | IntegerWeight",
    bias: Array | None = None,
    *,
    sizes: Sequence[int],
    contract: int = 1,
    start: int | None = None,
) -> tuple[Array, ...]:
    """One result per size, of that many rows of the first axis of `weight`."""
    y = integer_linear(x, weight, bias, contract=contract, start=start)
    axis = x.ndim - contract if start is None else start
    return tuple(jnp.split(y, list(np.cumsum(sizes))[:-1], axis=axis))


def with_integer_activations(subject: Subject) -> Subject:
    """Return the subject with integer linear layers, the substitution in its inspection.

    Every layer whose weights are Q8_0 or Q4_0 is one; CKE878 where there is none.
    """
    kinds = {item["name"]: item["format"].lower() for item in subject.inspection["layers"]}
    weights: dict[str, dict[str, Any]] = {s: dict(found) for s, found in subject.weights.items()}
    reached: set[str] = set()
    for step, parameter, members, contract in _linear_parameters(subject):
        found = {kinds.get(name) for name in members}
        kind = found.pop() if len(found) == 1 else None
        if kind not in KINDS:
            continue
        made = integer_weight(np.asarray(weights[step][parameter]), contract, kind)
        if made is not None:
            weights[step][parameter] = made
            reached |= set(members)
    if not reached:
        refuse("CKE878", f"no linear layer is stored in {' or '.join(KINDS)}")
    names: dict[str, Callable[..., Any]] = {
        "linear": integer_linear,
        "linear_group": integer_linear_group,
    }
    module = subject.package.modules[PHASE]
    package = package_with(
        subject.package, {name: f for name, f in names.items() if hasattr(module, name)}
    )
    inspection = _disclosed(subject.inspection, reached)
    return Subject(package, weights, subject.identity, inspection, subject.mode)


def _linear_parameters(subject: Subject) -> list[tuple[str, str, tuple[str, ...], int]]:
    """Step, parameter, semantic members and contracted axes of every weight of a `linear`."""
    program = subject.package.program(PHASE)
    functions = {function.name: function for function in program.functions}
    found = []
    for step in program.steps:
        function = functions[step.function]
        fused = {item.name: item.members for item in function.fused}
        for call in function.calls:
            if not any(member.operator == "linear" for member in call.members):
                continue
            for item in call.arguments:
                if item.source == "weight" and item.operand == "weight":
                    name = str(item.name)
                    members = tuple(step.weights[m] for m in fused.get(name, (name,)))
                    contract = int(call.attributes.get("contract", 1))
                    found.append((step_name(step), name, members, contract))
    return found


def _disclosed(inspection: dict[str, Any], reached: set[str]) -> dict[str, Any]:
    layers = [
        {**item, "as_exported": item["as_exported"] and item["name"] not in reached}
        for item in inspection["layers"]
    ]
    entry = {
        "parameter": PARAMETER,
        "kind": "activations of integer linear layers, rounded while they run",
        "replacement": f"8-bit codes with one f16 scale for {WIDTH} values (Q8_0)",
        "affected_layers": len(reached),
        "scored_layers": inspection["scored_layers"],
        "worst_spread": SPREAD,
    }
    listed = [*inspection["substitutions"], entry]
    return {**inspection, "layers": layers, "substitutions": listed}
