"""Trained models of pinned packages against their own forward."""

from typing import Any

import numpy as np
import pytest

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
