"""Llama with LayerNorm and bias everywhere, and a plain MLP with tanh GELU.

The decode phase of starcoder2@1 in f32, generated from circuits/starcoder2.circuit. Do not edit:
change the circuit and run `cke build`.

B is batch, T is query positions, S is key positions; D=64, L=4, H=4, K=2, E=16, F=176, V=320.
"""

from collections.abc import Mapping

from jax import Array, named_scope

from cke.kernel_registry.kernels.add import add
from cke.kernel_registry.kernels.append import append
from cke.kernel_registry.kernels.embedding import embedding
from cke.kernel_registry.kernels.gelu_tanh import gelu_tanh
from cke.kernel_registry.kernels.layer_norm import layer_norm
from cke.kernel_registry.kernels.linear import linear
from cke.kernel_registry.kernels.linear_group import linear_group
from cke.kernel_registry.kernels.rope import rope
from cke.kernel_registry.kernels.sdpa import sdpa
from cke.runtime.types import State, Weights


def embed(w: Weights, tokens: Array) -> Array:
    """Embed: block `causal_lm` (circuits/blocks/decoder.circuit:108).

    Takes tokens i32[B, T]; gives x f32[B, T, D].

    Weights:
        embed.weight: f32[V=320, D=64]
    """
    with named_scope("edge/x/embedding"), named_scope("embedding"):
        x = embedding(tokens, w["embed.weight"])  # circuits/blocks/decoder.circuit:125
    return x


def layer(w: Weights, state: State, x: Array, positions: Array) -> tuple[Array, State]:
    """Layers 0-3: block `starcoder2_layer` (circuits/starcoder2.circuit:27).

    Takes x f32[B, T, D], positions i32[B, T]; gives output f32[B, T, D].
    Keeps attention.kv, a cache of k f32[B, S, K, E], v f32[B, S, K, E], window 64.

    Weights:
        attn_norm.weight: f32[D=64]
        attn_norm.bias: f32[D=64]
        attention.qkv.weight: f32[H+K+K=8, E=16, D=64] of attention.q_proj.weight,
            attention.k_proj.weight, attention.v_proj.weight
        attention.qkv.bias: f32[H+K+K=8, E=16] of attention.q_proj.bias, attention.k_proj.bias,
            attention.v_proj.bias
        attention.o_proj.weight: f32[D=64, H=4, E=16]
        attention.o_proj.bias: f32[D=64]
        mlp_norm.weight: f32[D=64]
        mlp_norm.bias: f32[D=64]
        mlp.fc1.weight: f32[F=176, D=64]
        mlp.fc1.bias: f32[F=176]
        mlp.fc2.weight: f32[D=64, F=176]
        mlp.fc2.bias: f32[D=64]
    """
    with named_scope("attention_norm_output"):
        h = layer_norm(
            x, w["attn_norm.weight"], w["attn_norm.bias"], eps=1e-05
        )  # circuits/starcoder2.circuit:35
    with (
        named_scope("attention.query_projection_output"),
        named_scope("attention.key_projection_output"),
        named_scope("attention.value_projection_output"),
    ):
        q, k, v = linear_group(
            h, w["attention.qkv.weight"], w["attention.qkv.bias"], sizes=(4, 2, 2)
        )  # circuits/blocks/decoder.circuit:34-36
    with named_scope("attention.rope_query_output"):
        q = rope(q, positions, base=10000.0, width=16)  # circuits/blocks/decoder.circuit:41
    with named_scope("attention.rope_key_output"):
        k = rope(k, positions, base=10000.0, width=16)  # circuits/blocks/decoder.circuit:42
    with named_scope("attention.kv_append"), named_scope("edge/attention/key_positions/append"):
        kv, keys, values, key_positions = append(
            state["attention.kv"], positions, k, v, lanes=("k", "v"), window=64
        )  # circuits/blocks/decoder.circuit:43
    with named_scope("attention.attention_context"):
        _, _, y = sdpa(
            q,
            keys,
            values,
            positions=positions,
            key_positions=key_positions,
            scale=0.25,
            mask="causal",
            window=64,
        )  # circuits/blocks/decoder.circuit:44
    with named_scope("attention.attention_output_projection"):
        attention = linear(
            y, w["attention.o_proj.weight"], w["attention.o_proj.bias"], contract=2
        )  # circuits/blocks/decoder.circuit:45
    with named_scope("post_attention_residual"):
        x = add(x, attention)  # circuits/starcoder2.circuit:36
    with named_scope("mlp_norm_output"):
        h = layer_norm(
            x, w["mlp_norm.weight"], w["mlp_norm.bias"], eps=1e-05
        )  # circuits/starcoder2.circuit:37
    with named_scope("mlp.mlp_up_projection"):
        h = linear(h, w["mlp.fc1.weight"], w["mlp.fc1.bias"])  # circuits/blocks/encoder.circuit:27
    with named_scope("mlp.mlp_gated_activation"):
        h = gelu_tanh(h)  # circuits/blocks/encoder.circuit:28
    with named_scope("mlp.mlp_down_projection"):
        mlp = linear(
            h, w["mlp.fc2.weight"], w["mlp.fc2.bias"]
        )  # circuits/blocks/encoder.circuit:29
    with named_scope("layer_output"):
        output = add(x, mlp)  # circuits/starcoder2.circuit:38
    return output, {"attention.kv": kv}


def head(w: Weights, x: Array) -> Array:
    """Head: block `causal_lm` (circuits/blocks/decoder.circuit:108).

    Takes x f32[B, T, D]; gives y f32[B, T, V].

    Weights:
        final.weight: f32[D=64]
        final.bias: f32[D=64]
        head.weight: f32[V=320, D=64]
    """
    with named_scope("final_norm"):
        x = layer_norm(
            x, w["final.weight"], w["final.bias"], eps=1e-05
        )  # circuits/blocks/decoder.circuit:128
    with named_scope("edge/y/linear"), named_scope("logits"):
        y = linear(x, w["head.weight"])  # circuits/blocks/decoder.circuit:129
    return y


LAYERS = (layer,) * 4


def step(
    weights: Mapping[str, Weights], state: Mapping[str, State], tokens: Array, positions: Array
) -> tuple[Array, dict[str, State]]:
    """Run one whole decode step: 6 functions, 4 layers."""
    after: dict[str, State] = {}
    with named_scope("embed"):
        x = embed(weights["embed"], tokens)
    for index, function in enumerate(LAYERS):
        name = f"layer.{index}"
        with named_scope(name):
            x, after[name] = function(weights[name], state[name], x, positions)
    with named_scope("head"):
        logits = head(weights["head"], x)
    return logits, after
