"""Trained models of pinned packages against their own forward."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cke

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
)
"""Committed before the run: three prompts of prose, code and a story."""


def load_oracle(path: Any, **options: Any) -> Any:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32, **options
    )
    return model.eval()


def oracle_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens.astype(np.int64))).logits.numpy()


@pytest.mark.oracle_torch
@pytest.mark.parametrize("name", ["addformer", "subformer", "mulformer", "divformer"])
def test_mathformer_matches_transformers(mathformer_models, name):
    folder = mathformer_models[name]
    model = cke.load(folder)
    size = model.manifest.calls.dims["V"]
    tokens = np.random.default_rng(0).integers(0, size, (3, 12)).astype(np.int32)
    expected = oracle_logits(load_oracle(folder), tokens)
    got = model.logits(tokens)
    assert np.abs(got - expected).max() / np.abs(expected).max() <= 1e-4


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_gguf):
    from transformers import GgufConfig

    return load_oracle(
        smollm2_gguf.parent,
        gguf_file=smollm2_gguf.name,
        quantization_config=GgufConfig(dequantize=True),
    )


@pytest.mark.oracle_torch
def test_smollm2_speaks_as_transformers_does(smollm2_gguf, smollm2_oracle):
    import torch

    model = cke.load(smollm2_gguf)
    agreed = 0
    for prompt in PROMPTS:
        tokens = np.array([model.tokenizer.encode(prompt)], np.int32)
        expected = smollm2_oracle.generate(
            torch.tensor(tokens.astype(np.int64)),
            attention_mask=torch.ones(tokens.shape, dtype=torch.int64),
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, tokens.shape[1] :].tolist()
        got = model.generate(tokens, 32, stops=())[0]
        agreed += sum(a == b for a, b in zip(got, expected, strict=True))
        whole = np.array([[*tokens[0], *expected]], np.int32)
        wanted = oracle_logits(smollm2_oracle, whole)
        assert np.abs(model.logits(whole) - wanted).max() <= 1e-3
    assert agreed == 96


def test_smollm2_matches_the_float64_reference(smollm2_gguf):
    from cke.oracles.reference import run
    from cke.runtime.weights.load import Weights

    model = cke.load(smollm2_gguf, driver="per_layer")
    tokens = np.array([model.tokenizer.encode(PROMPTS[0])], np.int32)
    positions = np.arange(tokens.shape[1], dtype=np.int32)[None, :]
    weights = Weights(model.files, model.manifest.bindings, "f64")
    expected = run(model.manifest.graph, weights, tokens, positions, phase="prefill").outputs[0]
    assert np.abs(model.logits(tokens) - expected).max() <= 1e-3


def write_glassllm(model: Any, folder: Path) -> None:
    """Write glassllm as a Llama folder: its rope turns adjacent pairs, Llama's turns halves."""
    config = model.cfg
    width = config.d_model // config.n_heads
    tensors = {
        "model.embed_tokens.weight": model.E.data,
        "model.norm.weight": model.norm_f.gamma.data,
    }
    for index, block in enumerate(model.blocks):
        prefix = f"model.layers.{index}."
        tensors |= {
            f"{prefix}input_layernorm.weight": block.norm1.gamma.data,
            f"{prefix}post_attention_layernorm.weight": block.norm2.gamma.data,
            f"{prefix}self_attn.q_proj.weight": halves(block.attn.W_Q.data.T, width),
            f"{prefix}self_attn.k_proj.weight": halves(block.attn.W_K.data.T, width),
            f"{prefix}self_attn.v_proj.weight": block.attn.W_V.data.T,
            f"{prefix}self_attn.o_proj.weight": block.attn.W_O.data.T,
            f"{prefix}mlp.gate_proj.weight": block.ffn.W1.data.T,
            f"{prefix}mlp.up_proj.weight": block.ffn.W3.data.T,
            f"{prefix}mlp.down_proj.weight": block.ffn.W2.data.T,
        }
    folder.mkdir()
    arrays = {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}
    save_file(arrays, folder / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": int(8 * config.d_model / 3),
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_base,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(settings))


def halves(weight: np.ndarray, width: int) -> np.ndarray:
    """Return rows [even, odd] of each head in place of [0, 1, 2, …]."""
    pairs = weight.reshape(-1, width // 2, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def test_glassllm_matches_its_own_forward(glassllm_dir, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(glassllm_dir.parent))
    import glassllm

    oracle, _ = glassllm.load_pretrained("en")
    write_glassllm(oracle, tmp_path / "glassllm")
    model = cke.load(tmp_path / "glassllm", driver="per_layer")
    tokens = np.random.default_rng(4).integers(0, oracle.cfg.vocab_size, (2, 40)).astype(np.int32)
    with glassllm.no_grad():
        expected = oracle.forward(tokens).data
    got = model.logits(tokens)
    assert np.abs(got - expected).max() / np.abs(expected).max() <= 1e-4
