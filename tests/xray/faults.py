"""Faults in circuits for tests: one edit of a copy of the library, and what must be found."""

import shutil
from pathlib import Path
from typing import NamedTuple

import cke


class CircuitFault(NamedTuple):
    """An edit of a circuit file of a family, and the edge, class and owner that it must give."""

    family: str
    old: str
    new: str
    checkpoint_id: str
    failure_class: str
    changed: str
    file: str = "blocks/decoder.circuit"
    read: tuple[str, str] | None = None
    """How a wrong operand and the right one are called."""


FAULTS = {
    "rope-base": CircuitFault(
        "llama",
        "q = rope(q, positions, freqs, base: theta",
        "q = rope(q, positions, freqs, base: 12345.0",
        "layer.0.attention.rope_query_output",
        "POSITION_CONTRACT_MISMATCH",
        "base",
    ),
    "rope-pairing": CircuitFault(
        "llama",
        "pairing: split_half | interleaved = split_half",
        "pairing: split_half | interleaved = interleaved",
        "layer.0.attention.rope_query_output",
        "POSITION_CONTRACT_MISMATCH",
        "pairing",
    ),
    "attention-scale": CircuitFault(
        "llama",
        "scale: float = E ** -0.5",
        "scale: float = D ** -0.5",
        "layer.0.attention.attention_scores",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "scale",
    ),
    "window": CircuitFault(
        "llama",
        "mask: causal, window: window)",
        "mask: causal, window: 5)",
        "layer.0.attention.attention_probabilities",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "window",
    ),
    "activation": CircuitFault(
        "llama",
        "h = act(gate) * up",
        "h = gelu_tanh(gate) * up",
        "layer.0.mlp.mlp_gated_activation",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "gelu_tanh",
    ),
    "gate-and-up": CircuitFault(
        "llama",
        "h = act(gate) * up",
        "h = act(up) * gate",
        "layer.0.edge/mlp/h/silu",
        "CIRCUIT_PRODUCER_MISMATCH",
        "operand 0",
    ),
    "activation-of-the-product": CircuitFault(
        "llama",
        "h = act(gate) * up",
        "h = act(gate * up)",
        "layer.0.mlp.mlp_gated_activation",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of two ops",
    ),
    "norm-of-the-sum": CircuitFault(
        "gemma2",
        "  h = post_attn(attention(h))                               @ post_attention_norm_output\n"
        "  x = x + h                                                 @ post_attention_residual\n"
        "  h = pre_mlp(x)",
        "  h = attention(h)\n"
        "  x = post_attn(x + h)                                      @ post_attention_residual\n"
        "  h = pre_mlp(x)",
        "layer.0.post_attention_residual",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of two ops",
    ),
    "norm-of-another-edge": CircuitFault(
        "llama",
        "h = mlp_norm(x)                                           @ mlp_norm_output\n"
        "  return x + mlp(h) * residual_scale",
        "h = mlp_norm(h)                                           @ mlp_norm_output\n"
        "  return x + mlp(h) * residual_scale",
        "layer.0.mlp_norm_output",
        "CIRCUIT_PRODUCER_MISMATCH",
        "operand 0",
        read=("h @ attention_norm_output", "x @ post_attention_residual"),
    ),
    "residual-scale": CircuitFault(
        "llama",
        "residual_scale: float = 1",
        "residual_scale: float = 0.9",
        "layer.0.post_attention_residual",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "by",
    ),
    "keys-and-values": CircuitFault(
        "llama",
        "keys, values = append(kv, k, v)",
        "keys, values = append(kv, v, k)",
        "layer.0.attention.kv_append",
        "CIRCUIT_PRODUCER_MISMATCH",
        "operands 1 and 2",
    ),
    "split-parts": CircuitFault(
        "deepseek_v3",
        "q_nope, q_rope = split(q, axis: E, sizes: [N, R])",
        "q_rope, q_nope = split(q, axis: E, sizes: [R, N])",
        "layer.0.edge/attention/q_rope/split",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of the parts",
        "deepseek_v3.circuit",
    ),
    "concat-order": CircuitFault(
        "deepseek_v3",
        "k = concat(k_b(latent), repeat(k_rope, axis: H), axis: E)",
        "k = concat(repeat(k_rope, axis: H), k_b(latent), axis: E)",
        "layer.0.attention.key_projection_output",
        "CIRCUIT_PRODUCER_MISMATCH",
        "operands 0 and 1",
        "deepseek_v3.circuit",
    ),
    "gate-after-the-norm": CircuitFault(
        "granite_hybrid",
        "y = norm(y * silu(z)) ",
        "y = norm(y) * silu(z) ",
        "layer.0.mix.ssm_norm_output",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of two ops",
        "blocks/mamba2.circuit",
    ),
    "activation-after-the-convolution-lost": CircuitFault(
        "granite_hybrid",
        "xbc = silu(conv(xbc_proj(x), window))",
        "xbc = conv(xbc_proj(x), window)",
        "layer.0.mix.ssm_scan_output",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "silu",
        "blocks/mamba2.circuit",
    ),
    "softplus-lost": CircuitFault(
        "granite_hybrid",
        "clip(softplus(dt_proj(x) + dt_bias), low",
        "clip(dt_proj(x) + dt_bias, low",
        "layer.0.mix.ssm_scan_output",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "softplus of operand 0",
        "blocks/mamba2.circuit",
    ),
    "scan-of-other-parts": CircuitFault(
        "granite_hybrid",
        "u, b, c = split",
        "u, c, b = split",
        "layer.0.mix.ssm_scan_output",
        "CIRCUIT_PRODUCER_MISMATCH",
        "operands 3 and 4",
        "blocks/mamba2.circuit",
    ),
    "norm-before-the-sum": CircuitFault(
        "bert",
        "x = attn_norm(attention(x) + x) ",
        "x = attn_norm(attention(x)) + x ",
        "layer.0.post_attention_residual",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of two ops",
        "bert.circuit",
    ),
    "layer-scale-of-the-sum": CircuitFault(
        "dinov2",
        "  h = attention(h) * scale1                                 @ layer_scale_attention\n"
        "  x = h + x  ",
        "  h = attention(h)\n  x = (h + x) * scale1  ",
        "layer.0.post_attention_residual",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the order of two ops",
        "dinov2.circuit",
    ),
    "norm-epsilon": CircuitFault(
        "llama",
        "attn_norm: rms_norm[D](eps)   hf",
        "attn_norm: rms_norm[D](eps: 0.001)   hf",
        "layer.0.attention_norm_output",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "eps",
    ),
    "rope-left-out": CircuitFault(
        "llama",
        "use_rope: bool = true",
        "use_rope: bool = false",
        "layer.0.attention.rope_query_output",
        "CIRCUIT_PRODUCER_MISMATCH",
        "a rope",
    ),
    "residual-lost": CircuitFault(
        "llama",
        "x = x + attention(h) * residual_scale",
        "x = attention(h) * residual_scale",
        "layer.0.post_attention_residual",
        "CIRCUIT_PRODUCER_MISMATCH",
        "the sum with an edge",
    ),
    "softcap-missing": CircuitFault(
        "gemma2",
        "scale: scale, softcap: softcap, mask",
        "scale: scale, mask",
        "layer.0.attention.attention_scores",
        "CIRCUIT_SEMANTICS_DIVERGENCE",
        "softcap",
    ),
}


def edited(fault: CircuitFault, folder: Path) -> Path:
    """Return a circuit file beside a copy of the library, with the one edit made."""
    shutil.copytree(Path(cke.__file__).parent / "circuits", folder)
    path = folder / fault.file
    text = path.read_text("utf-8")
    assert fault.old in text, f"`{fault.old}` is not in {fault.file}"
    path.write_text(text.replace(fault.old, fault.new), "utf-8")
    return folder / f"{fault.family}.circuit"
