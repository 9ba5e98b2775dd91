"""The models that faults are injected into: tiny, random, made by transformers from a config.

Every parameter is drawn anew, biases and norms included, since the zeros and ones of a fresh model
hide mistakes. torch and transformers are imported when a model is made.
"""

from pathlib import Path
from typing import Any

DECODER: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
GEMMA = {**DECODER, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 6}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.0, "output_router_logits": False}
TINY_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", DECODER),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**DECODER, "sliding_window": 6}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**DECODER, "head_dim": 16}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", GEMMA),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **GEMMA,
            "num_hidden_layers": 4,
            "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention"],
        },
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": 96,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**DECODER, **EXPERTS, "num_local_experts": 4},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**DECODER, **EXPERTS, "head_dim": 16, "num_experts": 6, "moe_intermediate_size": 24},
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", DECODER),
    "granite": ("GraniteConfig", "GraniteForCausalLM", DECODER),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {**DECODER, "sliding_window": 6}),
}
"""Family → (config class, model class, config)."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama.llama3": {"rope_parameters": LLAMA3},
    "llama.linear": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    },
    "granite.steep": {"attention_multiplier": 1e6},
    "gemma2.width": {"query_pre_attn_scalar": GEMMA["head_dim"]},
}
"""A family with another name behind a dot → what its config has besides."""


def make_model(family: str, folder: Path) -> None:
    """Write the model of a family as a folder, in f32, with a fixed seed."""
    import torch
    import transformers

    config_class, model_class, config = TINY_MODELS[family.partition(".")[0]]
    torch.manual_seed(0)
    made = getattr(transformers, config_class)(**{**config, **VARIANTS.get(family, {})})
    model = getattr(transformers, model_class)(made).float().eval()
    draw(model, torch.Generator().manual_seed(0))
    model.save_pretrained(folder)


def quantise(source: Path, target: Path) -> None:
    """Write a GGUF file again with every matrix that blocks of 32 divide in Q4_1."""
    import gguf

    from cke.oracles.gguf_copy import copied_writer
    from cke.oracles.gguf_writer import finish

    kind = gguf.GGMLQuantizationType.Q4_1
    reader, writer, temporary = copied_writer(source, target)
    for tensor in reader.tensors:
        if len(tensor.shape) == 2 and tensor.shape[0] % 32 == 0:
            packed = gguf.quants.quantize(tensor.data, kind)
            writer.add_tensor(tensor.name, packed, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    finish(writer, temporary, target)


def draw(model: Any, generator: Any) -> None:
    """Draw every parameter anew: matrices keep the variance, vectors leave their fixed point."""
    import torch

    with torch.no_grad():
        for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim < 2:
                tensor.add_(0.2 * noise)
            elif "emb" in name or "wte" in name or "wpe" in name:
                tensor.copy_(0.5 * noise)
            else:
                conv1d = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
                tensor.copy_(noise * int(tensor.shape[-2 if conv1d else -1]) ** -0.5)
