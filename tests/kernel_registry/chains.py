"""Chains of kernels as layers use them, for tests that add captures to a program.

A chain maps named arrays to every edge it makes, in order; the last edge is its result.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from cke.kernel_registry.kernels.add import add
from cke.kernel_registry.kernels.append import append
from cke.kernel_registry.kernels.combine import combine
from cke.kernel_registry.kernels.depthwise_conv import depthwise_conv
from cke.kernel_registry.kernels.embedding import embedding
from cke.kernel_registry.kernels.expert_linear_gather import expert_linear_gather
from cke.kernel_registry.kernels.expert_linear_loop import expert_linear_loop
from cke.kernel_registry.kernels.gelu_erf import gelu_erf
from cke.kernel_registry.kernels.gelu_tanh import gelu_tanh
from cke.kernel_registry.kernels.layer_norm import layer_norm
from cke.kernel_registry.kernels.layer_norm_wide import layer_norm_wide
from cke.kernel_registry.kernels.linear import linear
from cke.kernel_registry.kernels.linear_group import linear_group
from cke.kernel_registry.kernels.multiply import multiply
from cke.kernel_registry.kernels.rms_norm import rms_norm
from cke.kernel_registry.kernels.rms_norm_wide import rms_norm_wide
from cke.kernel_registry.kernels.rope import rope
from cke.kernel_registry.kernels.route import route
from cke.kernel_registry.kernels.scale import scale
from cke.kernel_registry.kernels.sdpa import sdpa
from cke.kernel_registry.kernels.silu import silu
from cke.kernel_registry.kernels.softcap import softcap
from cke.kernel_registry.kernels.softplus import softplus
from cke.kernel_registry.kernels.ssd_scan import ssd_scan

Values = dict[str, Array]
Chain = Callable[[Values], Values]
D, H, K, E, F, X, V, S = 64, 4, 2, 16, 96, 4, 50, 32

SHAPES: dict[str, tuple[int, ...]] = {
    "table": (V, D),
    "places": (S, D),
    "qkv": (H + 2 * K, E, D),
    "qkv_bias": (H + 2 * K, E),
    "o": (D, H, E),
    "o_bias": (D,),
    "gate_up": (2 * F, D),
    "up": (F, D),
    "up_bias": (F,),
    "down": (D, F),
    "down_bias": (D,),
    "norm": (D,),
    "norm_bias": (D,),
    "head_norm": (E,),
    "router": (X, D),
    "experts_up": (X, F, D),
    "experts_down": (X, D, F),
    "conv": (D, 4),
    "conv_bias": (D,),
    "dt": (H, D),
    "dt_bias": (H,),
    "a_log": (H,),
    "skip": (H,),
    "states": (2 * E, D),
    "factor": (D,),
}


def values(seed: int, length: int, dtype: str) -> Values:
    """Random arrays for every chain: weights, x, tokens, positions and state."""
    random = np.random.default_rng(seed)
    made: Values = {
        name: jnp.asarray(random.standard_normal(shape) / shape[-1] ** 0.5, dtype)
        for name, shape in SHAPES.items()
    }
    made["x"] = jnp.asarray(random.standard_normal((1, length, D)), dtype)
    made["tokens"] = jnp.asarray(random.integers(0, V, (1, length)), jnp.int32)
    made["positions"] = jnp.arange(3, 3 + length, dtype=jnp.int32)[None]
    for lane in ("k", "v"):
        made[lane] = jnp.asarray(random.standard_normal((1, S, K, E)), dtype)
    filled = np.where(np.arange(S) < 3, np.arange(S), -1)[None]
    made["cached"] = jnp.asarray(filled, jnp.int32)
    made["count"] = jnp.asarray([3], jnp.int32)
    made["past"] = jnp.asarray(random.standard_normal((1, 3, D)), dtype)
    made["h"] = jnp.asarray(random.standard_normal((1, H, D // H, 2 * E // 2)), dtype)
    return made


def _attention(
    c: Values, x: Array, bias: Array | None, *, qk_norm: bool, cap: float | None
) -> Values:
    e: Values = {}
    e["q"], e["k"], e["v"] = linear_group(x, c["qkv"], bias, sizes=[H, K, K])
    if qk_norm:
        e["q_norm"] = rms_norm(e["q"], None, c["head_norm"], eps=1e-6)
        e["k_norm"] = rms_norm(e["k"], None, c["head_norm"], eps=1e-6)
    q, k = (e.get("q_norm", e["q"]), e.get("k_norm", e["k"]))
    e["q_rope"] = rope(q, c["positions"], None, base=1e4)
    e["k_rope"] = rope(k, c["positions"], None, base=1e4)
    slot = {"k": c["k"], "v": c["v"], "positions": c["cached"], "count": c["count"]}
    _, keys, lanes, at = append(slot, c["positions"], e["k_rope"], e["v"], lanes=["k", "v"])
    assert isinstance(keys, Array)
    assert isinstance(lanes, Array)
    assert isinstance(at, Array)
    e["keys"], e["values"] = keys, lanes
    e["scores"], e["probabilities"], e["context"] = sdpa(
        e["q_rope"],
        keys,
        lanes,
        positions=c["positions"],
        key_positions=at,
        scale=E**-0.5,
        softcap=cap,
        mask="causal",
        window=8,
    )
    return e


def llama(c: Values) -> Values:
    """Pre-norm, rope, gated MLP."""
    e: Values = {"norm": rms_norm(c["x"], None, c["norm"], eps=1e-5)}
    e |= _attention(c, e["norm"], None, qk_norm=False, cap=None)
    e["o"] = linear(e["context"], c["o"], None, contract=2)
    e["residual"] = add(c["x"], e["o"])
    e["norm_2"] = rms_norm(e["residual"], None, c["norm"], eps=1e-5)
    e["gate"], e["up"] = linear_group(e["norm_2"], c["gate_up"], None, sizes=[F, F])
    e["silu"] = silu(e["gate"])
    e["gated"] = multiply(e["silu"], e["up"])
    e["down"] = linear(e["gated"], c["down"], None)
    e["output"] = add(e["residual"], e["down"])
    return e


def qwen(c: Values) -> Values:
    """Biases on q, k and v, qk-norm, a scaled residual."""
    e: Values = {"norm": rms_norm(c["x"], None, c["norm"], eps=1e-6)}
    e |= _attention(c, e["norm"], c["qkv_bias"], qk_norm=True, cap=None)
    e["o"] = linear(e["context"], c["o"], c["o_bias"], contract=2)
    e["scaled"] = scale(e["o"], by=0.2216)
    e["residual"] = add(c["x"], e["scaled"])
    e["norm_2"] = rms_norm(e["residual"], None, c["norm"], eps=1e-6)
    e["up"] = linear(e["norm_2"], c["up"], c["up_bias"])
    e["gelu"] = gelu_erf(e["up"])
    e["down"] = linear(e["gelu"], c["down"], c["down_bias"])
    e["output"] = add(e["residual"], e["down"])
    return e


def gemma(c: Values) -> Values:
    """Scaled embedding, sandwich norms with an offset, soft caps."""
    e: Values = {"embed": embedding(c["tokens"], c["table"])}
    e["scaled"] = scale(e["embed"], by=D**0.5, constant="storage", dtype="f32")
    e["norm"] = rms_norm_wide(e["scaled"], None, c["norm"], eps=1e-6, offset=1)
    e |= _attention(c, e["norm"], None, qk_norm=False, cap=20.0)
    e["o"] = linear(e["context"], c["o"], None, contract=2)
    e["post"] = rms_norm_wide(e["o"], None, c["norm"], eps=1e-6, offset=1)
    e["residual"] = add(e["scaled"], e["post"])
    e["norm_2"] = rms_norm_wide(e["residual"], None, c["norm"], eps=1e-6, offset=1)
    e["gate"], e["up"] = linear_group(e["norm_2"], c["gate_up"], None, sizes=[F, F])
    e["gelu"] = gelu_tanh(e["gate"])
    e["gated"] = multiply(e["gelu"], e["up"])
    e["down"] = linear(e["gated"], c["down"], None)
    e["post_2"] = rms_norm_wide(e["down"], None, c["norm"], eps=1e-6, offset=1)
    e["sum"] = add(e["residual"], e["post_2"])
    e["logits"] = linear(e["sum"], c["table"], None)
    e["output"] = softcap(e["logits"], cap=30.0)
    return e


def gpt2(c: Values) -> Values:
    """Embedding and position, LayerNorm with bias, biases everywhere, tanh GELU."""
    e: Values = {"tokens": embedding(c["tokens"], c["table"])}
    e["places"] = embedding(c["positions"], c["places"])
    e["x"] = add(e["tokens"], e["places"])
    e["norm"] = layer_norm(e["x"], c["norm"], c["norm_bias"], eps=1e-5)
    e |= _attention(c, e["norm"], c["qkv_bias"], qk_norm=False, cap=None)
    e["o"] = linear(e["context"], c["o"], c["o_bias"], contract=2)
    e["residual"] = add(e["x"], e["o"])
    e["norm_2"] = layer_norm_wide(e["residual"], c["norm"], c["norm_bias"], eps=1e-5)
    e["up"] = linear(e["norm_2"], c["up"], c["up_bias"])
    e["gelu"] = gelu_tanh(e["up"])
    e["down"] = linear(e["gelu"], c["down"], c["down_bias"])
    e["output"] = add(e["residual"], e["down"])
    return e


def layer_scale(c: Values) -> Values:
    """A product by channel that meets a sum."""
    e: Values = {"norm": layer_norm(c["x"], c["norm"], c["norm_bias"], eps=1e-6)}
    e["up"] = linear(e["norm"], c["up"], c["up_bias"])
    e["gelu"] = gelu_erf(e["up"])
    e["down"] = linear(e["gelu"], c["down"], c["down_bias"])
    e["scaled"] = multiply(e["down"], c["factor"], right_axes=[2], rank=3)
    e["sum"] = add(e["scaled"], c["x"])
    e["output"] = layer_norm(e["sum"], c["norm"], c["norm_bias"], eps=1e-6)
    return e


def experts(c: Values) -> Values:
    """Router, experts, weighted sum, residual."""
    linear_of = expert_linear_gather if c["x"].shape[1] == 1 else expert_linear_loop
    e: Values = {"norm": rms_norm(c["x"], None, c["norm"], eps=1e-6)}
    e["logits"] = linear(e["norm"], c["router"], None)
    e["ids"], e["weights"] = route(e["logits"], None, k=2, scale=2.5)
    e["up"] = linear_of(e["norm"], c["experts_up"], e["ids"], selected=False, contract=1)
    e["silu"] = silu(e["up"])
    e["down"] = linear_of(e["silu"], c["experts_down"], e["ids"], selected=True, contract=1)
    e["mixed"] = combine(e["down"], e["weights"], axis=2)
    e["output"] = add(c["x"], e["mixed"])
    return e


def mamba(c: Values) -> Values:
    """Convolution, scan, gated norm, residual."""
    _, y = depthwise_conv({"x": c["past"]}, c["x"], c["positions"], c["conv"], c["conv_bias"])
    e: Values = {"conv": y}
    e["silu"] = silu(e["conv"])
    e["dt_raw"] = linear(c["x"], c["dt"], None)
    e["dt_sum"] = add(e["dt_raw"], c["dt_bias"], right_axes=[2], rank=3)
    e["dt"] = softplus(e["dt_sum"])
    e["states"] = linear(e["silu"], c["states"], None)
    b, k = e["states"][..., :E], e["states"][..., E:]
    e["h"], e["scan"] = _scan(c, e, b, k)
    e["norm"] = rms_norm_wide(
        e["scan"], e["silu"].reshape(e["scan"].shape), c["norm"].reshape(H, -1), eps=1e-6, axes=2
    )
    e["flat"] = e["norm"].reshape(c["x"].shape)
    e["output"] = add(c["x"], e["flat"])
    return e


def _scan(c: Values, e: Values, b: Array, k: Array) -> tuple[Array, Array]:
    slot, y = ssd_scan(
        {"h": c["h"]}, e["silu"], e["dt"], c["a_log"], b, k, c["skip"], c["positions"]
    )
    return slot["h"], y


CHAINS: dict[str, Chain] = {
    chain.__name__: chain for chain in (llama, qwen, gemma, gpt2, layer_scale, experts, mamba)
}
