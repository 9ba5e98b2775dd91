"""Every family against transformers: tiny random models, f32, every position of every row.

The bound is max |difference| over all logits ÷ max |oracle| ≤ 1e-4. A variant states the config
that it changes; the prompt is longer than every window.
"""

from typing import Any

import numpy as np
import pytest

import cke

BOUND = 1e-4
WIDTH = 21
THETA = 10000.0


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": THETA, **fields}}


LLAMA3 = rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
GEMMA3_LINEAR = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": THETA},
    }
}

VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "grouped", {}),
    ("llama", "one-kv-head-tied", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("llama", "biases", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    ("llama", "head-width", {"head_dim": 12}),
    ("llama", "rope-linear", rope("linear", factor=2.0)),
    ("llama", "rope-llama3", LLAMA3),
    ("llama", "rope-yarn", YARN),
    ("mistral", "window", {}),
    ("mistral", "no-window", {"sliding_window": None, "head_dim": 12}),
    ("qwen2", "plain", {}),
    ("qwen2", "tied-one-kv-head", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    (
        "qwen2",
        "window-from-layer-1",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    ("qwen2", "rope-yarn", YARN),
    ("qwen3", "head-width", {}),
    ("qwen3", "tied-all-kv-heads", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("qwen3", "bias", {"attention_bias": True, "num_key_value_heads": 1}),
    ("qwen3", "window", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}),
    ("gemma2", "window", {}),
    ("gemma2", "no-caps", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", "all-full", {"layer_types": ["full_attention"] * 3, "num_key_value_heads": 4}),
    (
        "gemma2",
        "small-caps",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "num_key_value_heads": 1},
    ),
    ("gemma3", "window", {}),
    ("gemma3", "rope-linear", GEMMA3_LINEAR),
    ("gemma3", "head-width", {"head_dim": 8, "query_pre_attn_scalar": 8, "num_key_value_heads": 4}),
    ("gemma3", "untied", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    ("gpt2", "plain", {}),
    ("gpt2", "inner", {"n_inner": 40, "n_head": 8}),
    ("gpt2", "activation", {"activation_function": "relu"}),
    ("gpt2", "one-layer-eps", {"n_layer": 1, "layer_norm_epsilon": 1e-3}),
    ("qwen3_moe", "norm-topk", {"norm_topk_prob": True}),
    ("qwen3_moe", "no-norm-topk", {"norm_topk_prob": False}),
    ("qwen3_moe", "dense-and-sparse", {"mlp_only_layers": [0], "decoder_sparse_step": 2}),
    ("qwen3_moe", "three-of-eight", {"num_experts": 8, "num_experts_per_tok": 3, "head_dim": 8}),
    ("mixtral", "plain", {}),
    ("mixtral", "window", {"sliding_window": 6}),
    ("mixtral", "three-of-eight", {"num_local_experts": 8, "num_experts_per_tok": 3}),
    ("mixtral", "one-kv-head-tied", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("starcoder2", "window-tied", {}),
    ("starcoder2", "no-window-untied", {"sliding_window": None, "tie_word_embeddings": False}),
    ("starcoder2", "no-bias-one-kv-head", {"use_bias": False, "num_key_value_heads": 1}),
    (
        "starcoder2",
        "all-kv-heads-eps-rope-yarn",
        {"num_key_value_heads": 4, "norm_epsilon": 1e-3, "tie_word_embeddings": False, **YARN},
    ),
]
IDS = [f"{family}-{name}" for family, name, _ in VARIANTS]

pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow]


def prompt() -> np.ndarray:
    return np.random.default_rng(3).integers(3, 96, (2, WIDTH)).astype(np.int32)


def oracle_logits(folder: Any, tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(tokens.astype(np.int64)),
            attention_mask=None if mask is None else torch.tensor(mask),
        )
    return found.logits.numpy()


def difference(got: Any, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(got) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("family", "name", "config"), VARIANTS, ids=IDS)
def test_a_family_matches_transformers(tiny_model, family, name, config):
    folder = tiny_model(family, **config)
    tokens = prompt()
    expected = oracle_logits(folder, tokens)
    model = cke.load(folder, driver="per_layer")
    whole = model.logits(tokens)
    assert whole.shape == expected.shape
    assert difference(whole, expected) <= BOUND
    assert difference(in_chunks(model, tokens, (7, 16)), whole) <= BOUND
    assert difference(decoded(model, tokens, 16), whole[:, 16:]) <= BOUND
    assert difference(unequal(model, tokens), np.stack([whole[0, 8], whole[1, -1]])) <= BOUND


def in_chunks(model: Any, tokens: np.ndarray, cuts: tuple[int, ...]) -> np.ndarray:
    session = model.session(len(tokens))
    parts = [session.prefill(part, logits="all") for part in np.split(tokens, cuts, axis=1)]
    return np.concatenate(parts, axis=1)


def decoded(model: Any, tokens: np.ndarray, start: int) -> np.ndarray:
    session = model.session(len(tokens))
    session.prefill(tokens[:, :start])
    steps = [np.asarray(session.decode(tokens[:, i])) for i in range(start, tokens.shape[1])]
    return np.stack(steps, axis=1)


def unequal(model: Any, tokens: np.ndarray) -> np.ndarray:
    rows = [tokens[0, :9].tolist(), tokens[1].tolist()]
    return np.asarray(model.session(2).prefill(rows))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_per_layer_and_whole_step_give_the_same_bits(tiny_model, family, dtype):
    folder = tiny_model(family)
    tokens = prompt()
    runs = []
    for driver in ("per_layer", "whole_step"):
        model = cke.load(folder, dtype=dtype, driver=driver)
        session = model.session(len(tokens))
        first = session.prefill(tokens[:, :-1], logits="all")
        second = np.asarray(session.decode(tokens[:, -1]))
        runs.append((first.tobytes(), second.tobytes()))
    assert runs[0][0] == runs[1][0], "prefill"
    assert runs[0][1] == runs[1][1], "decode"


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_greedy_generation_matches_transformers(tiny_model, family):
    import torch
    import transformers

    folder = tiny_model(family)
    tokens = prompt()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    expected = oracle.generate(
        torch.tensor(tokens.astype(np.int64)), max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    model = cke.load(folder)
    assert model.generate(tokens, 24, stops=()) == expected[:, WIDTH:].tolist()
