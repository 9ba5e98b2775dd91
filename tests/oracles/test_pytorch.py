"""The transformers oracle on tiny random models of every family."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cke.errors import CkeError
from cke.oracles.base import Array
from cke.runtime.schedule import CaptureRequest
from cke.schemas.trace import Record
from tests.models import TinyModel

pytestmark = pytest.mark.oracle_torch

REQUEST = CaptureRequest(
    tokens=((1, 2, 3, 4, 5, 6, 7, 8), (7, 8, 9)), segments=(5, 8), forced=((10, 11), (12, 13))
)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "mixtral")
POINTS = {
    "attention.query_projection_output",
    "attention.attention_scores",
    "attention.attention_probabilities",
    "attention.attention_context",
    "mlp_norm_output",
    "mlp.mlp_down_projection",
    "layer_output",
}


class Memory:
    """A sink that keeps captures."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, str | None, int], Array] = {}
        self.records: dict[tuple[str, str | None, int], Record] = {}

    def add(self, record: Record, array: Array) -> None:
        key = (record.checkpoint_id, record.role, record.segment)
        assert key not in self.arrays
        self.arrays[key] = array
        self.records[key] = record


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_moe"])
def test_every_point_of_every_layer_is_captured_and_outputs_stay_equal(
    family: str, tiny_model: TinyModel
) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    sink = Memory()
    oracle = PyTorchOracle(tiny_model(family))
    body = oracle.capture(REQUEST, sink)
    assert body.neutrality.outputs_equal
    layers = oracle.config.num_hidden_layers
    for layer in range(layers):
        for point in POINTS:
            for segment in range(4):
                assert (f"layer.{layer}.{point}", None, segment) in sink.arrays
    assert sink.arrays["logits", None, 0].shape == (2, 5, 96)


def test_measured_facts_tell_the_loaded_dtype(tiny_model: TinyModel) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    body = PyTorchOracle(tiny_model("llama"), "bf16").capture(REQUEST, Memory())
    assert set(body.producer.weight_dtypes) == {"bfloat16"}


def test_probabilities_are_the_softmax_of_the_masked_scores(tiny_model: TinyModel) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    sink = Memory()
    PyTorchOracle(tiny_model("gemma2")).capture(REQUEST, sink)
    scores = sink.arrays["layer.1.attention.attention_scores", None, 0][0].astype(np.float64)
    probabilities = sink.arrays["layer.1.attention.attention_probabilities", None, 0][0]
    masked = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    np.testing.assert_allclose(
        probabilities, weights / weights.sum(-1, keepdims=True), rtol=0, atol=1e-6
    )


@pytest.mark.contract("XRAY-8")
def test_a_perturbed_weight_moves_its_edge_and_descendants_only(tiny_model: TinyModel) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    before, after = Memory(), Memory()
    oracle = PyTorchOracle(tiny_model("llama"))
    oracle.capture(REQUEST, before)
    oracle.model.model.layers[1].self_attn.v_proj.weight.data[0, 0] += 1.0
    oracle.capture(REQUEST, after)
    order = [key for key in before.arrays if key[2] == 0]
    moved = {key for key in order if not np.array_equal(before.arrays[key], after.arrays[key])}
    assert ("layer.1.attention.value_projection_output", None, 0) in moved
    assert ("logits", None, 0) in moved
    untouched = [key for key in order if key[0].startswith("layer.0.")]
    assert not moved & set(untouched)
    for name in ("query_projection_output", "rope_key_output", "attention_probabilities"):
        assert (f"layer.1.attention.{name}", None, 0) not in moved


def test_an_unknown_family_names_the_known_ones() -> None:
    from cke.oracles.points import table_for

    with pytest.raises(CkeError, match=r"CKE710\]: no table of checkpoints for model_type `bloom`"):
        table_for("bloom")


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    from cke.oracles.pytorch import load_model

    with pytest.raises(CkeError, match=r"CKE711\]: the pytorch oracle runs f32, bf16 or f16"):
        load_model(tmp_path, "int8")


def test_weights_that_a_file_does_not_give_are_no_oracle(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.gguf_writer import write_gguf
    from cke.oracles.pytorch import load_model

    write_gguf(tiny_model("mixtral"), tmp_path / "mixtral.gguf")
    with pytest.raises(
        CkeError, match=r"mixtral.gguf: error\[CKE718\]: transformers reads the file as"
    ):
        load_model(tmp_path / "mixtral.gguf", "f32")
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "llama")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CkeError, match=r"draws `model.layers.1.mlp.up_proj.weight` at random"):
        load_model(folder, "f32")
