"""References against independent definitions: transformers' rope scalings, and closed forms."""

from typing import Any

import numpy as np
import pytest

from cke.kernel_registry.references import REFERENCES
from cke.kernel_registry.references.position import attention_factor, frequencies_of

PARAMETERS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {
        "short_factor": [1.0 + 0.1 * i for i in range(16)],
        "long_factor": [2.0 + i for i in range(16)],
        "original_max_position_embeddings": 32,
        "factor": 4.0,
    },
}
SPELLINGS = {
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "original_max_position_embeddings": "original",
    "short_factor": "short",
    "long_factor": "long",
}


def _ours(kind: str) -> dict[str, Any]:
    value = {SPELLINGS.get(name, name): v for name, v in PARAMETERS[kind].items()}
    extra = {"beta_fast": 32.0, "beta_slow": 1.0} if kind == "yarn" else {}
    return {"kind": kind, **value, **extra}


@pytest.mark.oracle_torch
@pytest.mark.parametrize("kind", sorted(PARAMETERS))
def test_rope_scalings_are_those_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **PARAMETERS[kind]},
    )
    wanted, gain = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    made, long = frequencies_of(10000.0, 32, _ours(kind))
    assert np.allclose(made, wanted.double().numpy(), rtol=2e-6, atol=0)
    assert attention_factor(_ours(kind)) == pytest.approx(gain, rel=1e-12)
    if long is not None:
        longer, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=100)
        assert np.allclose(long, longer.double().numpy(), rtol=2e-6, atol=0)


def test_rope_keeps_the_length_of_pairs() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 2, 8))
    at = np.arange(5, dtype=np.int32)[None]
    for pairing in ("split_half", "interleaved"):
        turned = REFERENCES["rope"](x, at, None, base=1e4, pairing=pairing)
        assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
        assert np.array_equal(turned[:, 0], x[:, 0])


def test_halves_of_interleaved_pairs_are_the_split_half_of_sorted_input() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 2, 8))
    at = np.arange(5, dtype=np.int32)[None]
    halves = REFERENCES["rope"](x, at, None, base=1e4, pairing="interleaved", output_order="halves")
    ordered = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    assert np.allclose(halves, REFERENCES["rope"](ordered, at, None, base=1e4), rtol=0, atol=1e-15)


def test_a_window_excludes_the_key_at_its_distance() -> None:
    one = np.ones((1, 6, 1, 2))
    at = np.arange(6, dtype=np.int32)[None]
    _, shares, _ = REFERENCES["sdpa"](
        one, one, one, None, None, at, at, scale=1.0, mask="causal", window=3
    )
    assert np.allclose(shares[0, 0, 5], [0, 0, 0, 1 / 3, 1 / 3, 1 / 3])


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    one = np.ones((1, 2, 1, 2))
    at = np.array([[0, 1]], np.int32)
    nothing = np.full((1, 2), -1, np.int32)
    _, shares, context = REFERENCES["sdpa"](
        one, one, one, None, None, at, nothing, scale=1.0, mask="causal"
    )
    assert not shares.any()
    assert not context.any()


def test_grouped_heads_share_neighbouring_kv_heads() -> None:
    q = np.zeros((1, 1, 4, 2))
    v = np.array([1.0, 2.0]).reshape(1, 1, 2, 1)
    k = np.zeros((1, 1, 2, 2))
    for head_map, wanted in (("grouped", [1, 1, 2, 2]), ("interleaved", [1, 2, 1, 2])):
        context = REFERENCES["sdpa"](q, k, v, scale=1.0, mask="bidirectional", head_map=head_map)[2]
        assert context.reshape(-1).tolist() == wanted


def test_a_ring_overwrites_its_oldest_row() -> None:
    slot = {
        "k": np.zeros((1, 3, 1)),
        "positions": np.full((1, 3), -1, np.int32),
        "count": np.zeros(1, np.int32),
    }
    for at in range(5):
        position = np.array([[at]], np.int32)
        row = np.full((1, 1, 1), float(at))
        slot, _, _ = REFERENCES["append"](slot, position, row, lanes=["k"], window=2)
    assert slot["positions"].tolist() == [[3, 4, 2]]
    assert slot["k"].reshape(-1).tolist() == [3.0, 4.0, 2.0]
    assert slot["count"].tolist() == [5]


def test_a_padding_row_is_not_written_and_does_not_count() -> None:
    slot = {
        "k": np.zeros((1, 4, 1)),
        "positions": np.full((1, 4), -1, np.int32),
        "count": np.zeros(1, np.int32),
    }
    rows = np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1)
    new, _, keys = REFERENCES["append"](slot, np.array([[5, -1, 6]], np.int32), rows, lanes=["k"])
    assert new["k"].reshape(-1).tolist() == [1.0, 3.0, 0.0, 0.0]
    assert keys.tolist() == [[5, 6, -1, -1]]
    assert new["count"].tolist() == [2]
    assert not slot["k"].any()


def test_the_choice_bias_bears_on_the_choice_alone() -> None:
    logits = np.array([[2.0, 1.0, 0.0]])
    ids, weights = REFERENCES["route"](
        logits, np.array([0.0, 0.0, 9.0]), k=1, score="sigmoid", renormalise=False
    )
    assert ids.tolist() == [[2]]
    assert weights.tolist() == [[0.5]]


def test_equal_scores_prefer_the_lower_id() -> None:
    ids, _ = REFERENCES["route"](np.zeros((1, 4)), None, k=2)
    assert ids.tolist() == [[0, 1]]


def test_a_storage_constant_is_rounded_to_the_dtype() -> None:
    one = np.ones(1)
    scaled = REFERENCES["scale"](one, by=24**0.5, constant="storage", dtype="bf16")
    assert scaled.tolist() == [4.90625]
    assert REFERENCES["scale"](one, by=24**0.5).tolist() == [float(np.float32(24**0.5))]


def test_the_scan_is_the_closed_form_of_one_step() -> None:
    h, x, dt, b, c = 0.5, 2.0, 0.25, 3.0, 4.0
    slot, y = REFERENCES["ssd_scan"](
        {"h": np.full((1, 1, 1, 1), h)},
        np.full((1, 1, 1), x),
        np.full((1, 1, 1), dt),
        np.zeros(1),
        np.full((1, 1, 1), b),
        np.full((1, 1, 1), c),
        np.full(1, 7.0),
        np.zeros((1, 1), np.int32),
        lanes=["h"],
    )
    state = np.exp(-dt) * h + dt * x * b
    assert np.allclose(slot["h"], state)
    assert np.allclose(y, state * c + 7 * x)
