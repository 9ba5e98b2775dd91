"""A two-layer llama written by hand as a package: what a session is developed and tested on.

Layer 0 has a window of 4, layer 1 none; no kernel of the registry is used, so that a fault here is
the session's. `PACKAGE` and `random_weights` are all that tests need.
"""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from cke.runtime.package import Package
from cke.schemas.call_ir import CallIR, Function, FusedWeight, Program
from cke.schemas.ir import Parameter, StateSlot, Step, TensorType

DIMS = {"D": 16, "L": 2, "H": 4, "K": 2, "E": 6, "F": 20, "V": 50}
WINDOW = 4


def rms_norm(x, weight):
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-5))
    return weight[None, None, :] * (wide * scale).astype(x.dtype)


def linear(x, weight, axes=1):
    first, second = (
        tuple(range(x.ndim - axes, x.ndim)),
        tuple(range(weight.ndim - axes, weight.ndim)),
    )
    out = jax.lax.dot_general(
        x, weight, ((first, second), ((), ())), preferred_element_type=jnp.float32
    )
    return out.astype(x.dtype)


def rotate(x, positions):
    """Turn by position in float64, rounded once, so that no contraction changes the bits."""
    with jax.enable_x64(True):
        half = x.shape[-1] // 2
        angle = jnp.maximum(positions, 0)[:, :, None, None].astype(jnp.float64)
        angle = angle * jnp.asarray(10000.0 ** (-np.arange(half) / half))[None, None, None, :]
        a, b = jnp.split(x.astype(jnp.float64), 2, axis=-1)
        turned = jnp.concatenate(
            (a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)), -1
        )
        return turned.astype(x.dtype)


def append(slot, positions, k, v):
    rows = slot["positions"].shape[1]
    valid = positions >= 0
    number = slot["count"][:, None] + jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
    place = jnp.where(valid, number % rows, rows)
    batch = jnp.arange(positions.shape[0])[:, None]
    return {
        "k": slot["k"].at[batch, place].set(k, mode="drop"),
        "v": slot["v"].at[batch, place].set(v, mode="drop"),
        "positions": slot["positions"].at[batch, place].set(positions, mode="drop"),
        "count": slot["count"] + valid.sum(axis=1, dtype=jnp.int32),
    }


def attend(q, slot, positions, window):
    b, t, h, e = q.shape
    q = q.reshape(b, t, DIMS["K"], -1, e)
    scores = jnp.einsum("btkge,bske->bkgts", q, slot["k"], preferred_element_type=jnp.float32)
    query, key = positions[:, None, None, :, None], slot["positions"][:, None, None, None, :]
    seen = (key >= 0) & (key <= query)
    if window is not None:
        seen &= query - key < window
    masked = jnp.where(seen, scores * np.float32(e**-0.5), np.float32(-1e30))
    probs = jax.nn.softmax(masked, axis=-1).astype(q.dtype)
    out = jnp.einsum("bkgts,bske->btkge", probs, slot["v"], preferred_element_type=jnp.float32)
    return out.astype(q.dtype).reshape(b, t, h, e)


def embed(w, tokens):
    return w["embed.weight"][tokens]


def _layer(w, state, x, positions, window):
    h = rms_norm(x, w["attn_norm.weight"])
    qkv = linear(h, w["attention.qkv.weight"])
    q, k, v = jnp.split(qkv, (DIMS["H"], DIMS["H"] + DIMS["K"]), axis=2)
    slot = append(state["attention.kv"], positions, rotate(k, positions), v)
    y = attend(rotate(q, positions), slot, positions, window)
    x = x + linear(y, w["attention.o_proj.weight"], 2)
    h = rms_norm(x, w["mlp_norm.weight"])
    gated = jax.nn.silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
    return x + linear(gated, w["mlp.down_proj.weight"]), {"attention.kv": slot}


def layer_sliding(w, state, x, positions):
    return _layer(w, state, x, positions, WINDOW)


def layer_full(w, state, x, positions):
    return _layer(w, state, x, positions, None)


def head(w, x):
    return linear(rms_norm(x, w["final.weight"]), w["head.weight"])


def step(weights, state, tokens, positions):
    after = {}
    x = embed(weights["embed"], tokens)
    for name, function in (("layer.0", layer_sliding), ("layer.1", layer_full)):
        x, after[name] = function(weights[name], state[name], x, positions)
    return head(weights["head"], x), after


def _type(axes, dtype):
    names = tuple(axes.split())
    return TensorType(axes=names, shape=tuple(DIMS.get(name, name) for name in names), dtype=dtype)


def _parameter(name, axes, dtype):
    return Parameter(name=name, type=_type(axes, dtype))


def _slot(name, window, dtype):
    lanes = (_parameter("k", "B S K E", dtype), _parameter("v", "B S K E", dtype))
    return StateSlot(name=name, kind="cache", lanes=lanes, window=window)


LAYER_WEIGHTS = {
    "attn_norm.weight": "D",
    "attention.o_proj.weight": "D H E",
    "mlp_norm.weight": "D",
    "mlp.gate_proj.weight": "F D",
    "mlp.up_proj.weight": "F D",
    "mlp.down_proj.weight": "D F",
}
MEMBERS = {"attention.q_proj.weight": "H E D", "attention.k_proj.weight": "K E D"} | {
    "attention.v_proj.weight": "K E D"
}


def _layer_function(name, layers, window, dtype):
    qkv = TensorType(axes=("C", "E", "D"), shape=(8, DIMS["E"], DIMS["D"]), dtype=dtype)
    return Function(
        name=name,
        parameters=(_parameter("x", "B T D", dtype), _parameter("positions", "B T", "i32")),
        weights=(
            Parameter(name="attention.qkv.weight", type=qkv),
            *(_parameter(key, axes, dtype) for key, axes in LAYER_WEIGHTS.items()),
        ),
        fused=(FusedWeight(name="attention.qkv.weight", members=tuple(MEMBERS), axis=0),),
        scalars=(),
        state=(_slot("attention.kv", window, dtype),),
        calls=(),
        results=("return",),
        layers=layers,
    )


def _plain_function(name, parameter, weights, dtype):
    return Function(
        name=name,
        parameters=(parameter,),
        weights=tuple(_parameter(key, axes, dtype) for key, axes in weights.items()),
        fused=(),
        scalars=(),
        state=(),
        calls=(),
        results=("y",),
    )


def _program(phase, dtype):
    tokens, positions = _parameter("tokens", "B T", "i32"), _parameter("positions", "B T", "i32")
    members = (*LAYER_WEIGHTS, *MEMBERS)
    layers = [
        Step(
            function=("layer_sliding", "layer_full")[index],
            layer=index,
            arguments=(f"x.{index}", "positions"),
            results=(f"x.{index + 1}",),
            weights={name: f"layer.{index}.{name}" for name in members},
            state={"attention.kv": f"layer.{index}.attention.kv"},
        )
        for index in range(2)
    ]
    first = Step(
        function="embed",
        layer=None,
        arguments=("tokens",),
        results=("x.0",),
        weights={"embed.weight": "embed.weight"},
        state={},
    )
    last = Step(
        function="head",
        layer=None,
        arguments=("x.2",),
        results=("logits",),
        weights={"final.weight": "final.weight", "head.weight": "head.weight"},
        state={},
    )
    return Program(
        phase=phase,
        inputs=(tokens, positions),
        functions=(
            _plain_function("embed", tokens, {"embed.weight": "V D"}, dtype),
            _layer_function("layer_sliding", (0,), WINDOW, dtype),
            _layer_function("layer_full", (1,), None, dtype),
            _plain_function(
                "head",
                _parameter("x", "B T D", dtype),
                {"final.weight": "D", "head.weight": "V D"},
                dtype,
            ),
        ),
        steps=(first, *layers, last),
        slots=(
            _slot("layer.0.attention.kv", WINDOW, dtype),
            _slot("layer.1.attention.kv", None, dtype),
        ),
        outputs=("logits",),
    )


def toy_package(dtype="f32"):
    module = ModuleType("toy")
    for function in (embed, layer_sliding, layer_full, head, step):
        setattr(module, function.__name__, function)
    programs = tuple(_program(phase, dtype) for phase in ("prefill", "decode"))
    calls = CallIR(circuit="toy", version=1, dtype=dtype, dims=DIMS, programs=programs)
    return Package(calls, {"prefill": module, "decode": module})


def random_weights(dtype="f32", seed=0):
    """Return every semantic weight; the head is tied to the embedding."""
    generator = np.random.default_rng(seed)
    shapes = {"embed.weight": "V D", "final.weight": "D"}
    for index in range(2):
        shapes |= {f"layer.{index}.{key}": axes for key, axes in (LAYER_WEIGHTS | MEMBERS).items()}
    kind = jnp.bfloat16 if dtype == "bf16" else np.float32
    return {
        name: generator.normal(0, 0.3, [DIMS[axis] for axis in axes.split()]).astype(kind)
        for name, axes in shapes.items()
    }


def canonical(name):
    """Return the weight that a tied one is."""
    return "embed.weight" if name == "head.weight" else name
