"""Learned positions, LayerNorm with bias, fused Conv1D qkv, tanh GELU.

The decode phase of gpt2@1 in f32, generated from circuits/gpt2.circuit. Do not edit: change the
circuit and run `cke build`.

B is batch, T is query positions, S is key positions; V=320, D=64, L=4, H=4, K=4, E=16, F=256,
R=512.
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
from cke.kernel_registry.kernels.sdpa import sdpa
from cke.runtime.types import State, Weights


def embed(w: Weights, tokens: Array, positions: Array) -> Array:
    """Embed: block `gpt2_lm` (circuits/gpt2.circuit:56).

    Takes tokens i32[B, T], positions i32[B, T]; gives x f32[B, T, D].

    Weights:
        wte.weight: f32[V=320, D=64]
        wpe.weight: f32[R=512, D=64]
    """
    with named_scope("edge/x/embedding"):
        x = embedding(tokens, w["wte.weight"])  # circuits/gpt2.circuit:67
    with named_scope("edge/x/embedding.2"):
        x_2 = embedding(positions, w["wpe.weight"])  # circuits/gpt2.circuit:67
    with named_scope("embedding"):
        x = add(x, x_2)  # circuits/gpt2.circuit:67
    return x


def layer(w: Weights, state: State, x: Array, positions: Array) -> tuple[Array, State]:
    """Layers 0-3: block `gpt2_layer` (circuits/gpt2.circuit:43).

    Takes x f32[B, T, D], positions i32[B, T]; gives output f32[B, T, D].
    Keeps attention.kv, a cache of k f32[B, S, K, E], v f32[B, S, K, E].

    Weights:
        ln_1.weight: f32[D=64]
        ln_1.bias: f32[D=64]
        attention.qkv.weight: f32[H+K+K=12, E=16, D=64] of attention.q_proj.weight,
            attention.k_proj.weight, attention.v_proj.weight
        attention.qkv.bias: f32[H+K+K=12, E=16] of attention.q_proj.bias, attention.k_proj.bias,
            attention.v_proj.bias
        attention.o_proj.weight: f32[D=64, H=4, E=16]
        attention.o_proj.bias: f32[D=64]
        ln_2.weight: f32[D=64]
        ln_2.bias: f32[D=64]
        mlp.fc1.weight: f32[F=256, D=64]
        mlp.fc1.bias: f32[F=256]
        mlp.fc2.weight: f32[D=64, F=256]
        mlp.fc2.bias: f32[D=64]
    """
    with named_scope("attention_norm_output"):
        h = layer_norm(x, w["ln_1.weight"], w["ln_1.bias"], eps=1e-05)  # circuits/gpt2.circuit:51
    with (
        named_scope("attention.query_projection_output"),
        named_scope("attention.key_projection_output"),
        named_scope("attention.value_projection_output"),
    ):
        q, k, v = linear_group(
            h, w["attention.qkv.weight"], w["attention.qkv.bias"], sizes=(4, 4, 4)
        )  # circuits/blocks/decoder.circuit:34-36
    with named_scope("attention.kv_append"), named_scope("edge/attention/key_positions/append"):
        kv, keys, values, key_positions = append(
            state["attention.kv"], positions, k, v, lanes=("k", "v")
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
        )  # circuits/blocks/decoder.circuit:44
    with named_scope("attention.attention_output_projection"):
        attention = linear(
            y, w["attention.o_proj.weight"], w["attention.o_proj.bias"], contract=2
        )  # circuits/blocks/decoder.circuit:45
    with named_scope("post_attention_residual"):
        x = add(x, attention)  # circuits/gpt2.circuit:52
    with named_scope("mlp_norm_output"):
        h = layer_norm(x, w["ln_2.weight"], w["ln_2.bias"], eps=1e-05)  # circuits/gpt2.circuit:53
    with named_scope("mlp.mlp_up_projection"):
        h = linear(h, w["mlp.fc1.weight"], w["mlp.fc1.bias"])  # circuits/blocks/encoder.circuit:27
    with named_scope("mlp.mlp_gated_activation"):
        h = gelu_tanh(h)  # circuits/blocks/encoder.circuit:28
    with named_scope("mlp.mlp_down_projection"):
        mlp = linear(
            h, w["mlp.fc2.weight"], w["mlp.fc2.bias"]
        )  # circuits/blocks/encoder.circuit:29
    with named_scope("layer_output"):
        output = add(x, mlp)  # circuits/gpt2.circuit:54
    return output, {"attention.kv": kv}


def head(w: Weights, x: Array) -> Array:
    """Head: block `gpt2_lm` (circuits/gpt2.circuit:56).

    Takes x f32[B, T, D]; gives output f32[B, T, V].

    Weights:
        ln_f.weight: f32[D=64]
        ln_f.bias: f32[D=64]
        head.weight: f32[V=320, D=64]
    """
    with named_scope("final_norm"):
        x = layer_norm(x, w["ln_f.weight"], w["ln_f.bias"], eps=1e-05)  # circuits/gpt2.circuit:70
    with named_scope("logits"):
        output = linear(x, w["head.weight"])  # circuits/gpt2.circuit:71
    return output


LAYERS = (layer,) * 4


def step(
    weights: Mapping[str, Weights], state: Mapping[str, State], tokens: Array, positions: Array
) -> tuple[Array, dict[str, State]]:
    """Run one whole decode step: 6 functions, 4 layers."""
    after: dict[str, State] = {}
    with named_scope("embed"):
        x = embed(weights["embed"], tokens, positions)
    for index, function in enumerate(LAYERS):
        name = f"layer.{index}"
        with named_scope(name):
            x, after[name] = function(weights[name], state[name], x, positions)
    with named_scope("head"):
        logits = head(weights["head"], x)
    return logits, after
