"""Weights first: what was bound against what llama.cpp loaded, without a forward of the subject."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cke.api
from cke.api.diagnosis import ModelSubject
from cke.oracles.gguf_writer import write_gguf
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph
from cke.xray.weights import weights_fault
from tests.models import TinyModel
from tests.xray.matrix import LLAMACPP

pytestmark = [pytest.mark.oracle_llamacpp, pytest.mark.oracle_torch]
Tensors = dict[str, np.ndarray]
LAYER = "model.layers.1."


def _compared(folder: Path, gguf: Path, dtype: str = "float32") -> tuple[Finding | None, int]:
    from cke.oracles.llamacpp import LlamaCppOracle

    subject = ModelSubject(cke.api.load(folder, dtype=dtype))
    graph = ProgramGraph(subject.manifest, "prefill")
    loaded = LlamaCppOracle(gguf).module_weights()
    return weights_fault(graph, subject, loaded, subject.dtype)


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=[pytest.mark.slow, pytest.mark.nightly])]
)
@pytest.mark.parametrize("family", LLAMACPP)
def test_what_llamacpp_loaded_is_what_was_bound(
    family: str, dtype: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = tiny_model(family, **LLAMACPP[family])
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    finding, count = _compared(folder, write_gguf(folder, tmp_path / "m.gguf", short), dtype)
    assert finding is None
    layers = 4 if family == "gemma3" else 3
    assert count >= 9 * layers + 2


def _rows_exchanged(tensors: Tensors) -> None:
    key = LAYER + "mlp.up_proj.weight"
    tensors[key] = tensors[key][[1, 0, *range(2, len(tensors[key]))]]


def _scaled(tensors: Tensors) -> None:
    tensors[LAYER + "mlp.down_proj.weight"] *= np.float32(1.25)


def _shifted(tensors: Tensors) -> None:
    tensors[LAYER + "self_attn.v_proj.weight"] += np.float32(0.5)


def _transposed(tensors: Tensors) -> None:
    key = LAYER + "self_attn.o_proj.weight"
    tensors[key] = np.ascontiguousarray(tensors[key].T)


def _exchanged(tensors: Tensors) -> None:
    gate, up = LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _tied(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()


def _one_element(tensors: Tensors) -> None:
    tensors["model.norm.weight"][5] += np.float32(1e-3)


BINDING, VALUE = "WEIGHT_BINDING_MISMATCH", "WEIGHT_VALUE_DIVERGENCE"
EDITS: dict[str, tuple[Callable[[Tensors], None], str, str, str]] = {
    "permutation": (
        _rows_exchanged,
        "layer.1.mlp.mlp_up_projection",
        BINDING,
        "its rows are the oracle's in another order: rows 0, 1, 2, 3 are its 1, 0, 2, 3",
    ),
    "scale": (_scaled, "layer.1.mlp.mlp_down_projection", VALUE, "it is 0.8 times the oracle's"),
    "zero-point": (
        _shifted,
        "layer.1.attention.value_projection_output",
        VALUE,
        "it is the oracle's plus -0.5",
    ),
    "transposition": (
        _transposed,
        "layer.1.attention.attention_output_projection",
        BINDING,
        "it is the oracle's transposed",
    ),
    "name": (
        _exchanged,
        "layer.1.mlp.mlp_gate_projection",
        BINDING,
        "it holds the oracle's `weight` of `layer.1.mlp.mlp_up_projection`",
    ),
    "tying": (_tied, "logits", BINDING, "the oracle ties it to its `weight` of `embedding`"),
    "one-element": (_one_element, "final_norm", VALUE, "1 of 32 elements differ"),
}


COARSE = ("permutation", "scale", "transposition", "name", "tying")
"""What a bf16 run tells too; its words are the same but for rounded numbers."""


@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, "f32") for n in EDITS), *((n, "bf16") for n in COARSE)]
)
def test_a_file_that_is_not_the_subjects_is_told_by_its_first_weight(
    name: str, dtype: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    edit, checkpoint, failure_class, text = EDITS[name]
    folder = tiny_model("llama")
    shutil.copytree(folder, tmp_path / "theirs")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    gguf = write_gguf(tmp_path / "theirs", tmp_path / "m.gguf", dtype)
    finding, _ = _compared(folder, gguf, {"f32": "float32", "bf16": "bfloat16"}[dtype])
    assert finding is not None
    assert (finding.checkpoint_id, finding.failure_class) == (checkpoint, failure_class)
    assert dtype == "bf16" or text in finding.because[-1]


WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}
"""Rows that the blocks of 256 of a K format divide."""
QUANTISED = [
    ("llama", "q8_0", "Q8_0"),
    ("llama", "q4_0", "Q4_0"),
    ("llama", "q4_k_s", "Q4_K"),
    ("llama", "q6_k", "Q6_K"),
    ("mixtral", "q8_0", "Q8_0"),
]


def _quantised(tiny_model: TinyModel, family: str, kind: str, folder: Path) -> Path:
    from cke.oracles.gguf_quantise import quantise_gguf

    return quantise_gguf(tiny_model(family, **WIDE), kind, folder / f"{kind}.gguf")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind", "storage"), QUANTISED)
def test_blocks_are_decoded_as_llamacpp_decodes_them(
    family: str, kind: str, storage: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.gguf_copy import stored_kinds

    path = _quantised(tiny_model, family, kind, tmp_path)
    assert stored_kinds(path)[storage] >= 5
    finding, count = _compared(path, path)
    assert finding is None
    assert count >= 9 + 2


def _scale_changed(path: Path, target: Path, name: str) -> Path:
    """Write the file again with one scale of a tensor doubled: the first half of its block 3."""
    import gguf

    shutil.copyfile(path, target)
    tensor = next(item for item in gguf.GGUFReader(path).tensors if item.name == name)
    _, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    within = size - 2 if tensor.tensor_type.name == "Q6_K" else 0
    data = np.memmap(target, np.uint8, "r+")
    at = int(tensor.data_offset) + 3 * size + within
    scale = data[at : at + 2].view(np.float16)
    scale *= np.float16(2)
    assert float(scale[0]) != 0
    data.flush()
    return target


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind", "storage"), QUANTISED[:4])
def test_one_scale_of_a_block_in_the_subjects_file_is_told_by_its_weight(
    family: str, kind: str, storage: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = _quantised(tiny_model, family, kind, tmp_path)
    changed = _scale_changed(path, tmp_path / "changed.gguf", "blk.0.ffn_up.weight")
    finding, _ = _compared(changed, path)
    assert finding is not None
    assert finding.checkpoint_id == "layer.0.mlp.mlp_up_projection"
    assert (finding.failure_class, finding.fix_owner) == (VALUE, "weights")
    block = 32 if kind.endswith("_0") else 256
    differing = int(finding.because[-1].split()[0])
    assert block // 2 < differing <= block


def test_rope_pairs_that_were_left_in_are_another_order_of_rows(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cke.oracles.gguf_writer.ROPE_PAIRS", set())
    folder = tiny_model("llama")
    finding, _ = _compared(folder, write_gguf(folder, tmp_path / "m.gguf"))
    assert finding is not None
    assert finding.checkpoint_id == "layer.0.attention.query_projection_output"
    assert finding.failure_class == BINDING
    assert "in another order: rows 0, 1, 2, 3 are its 0, 4, 1, 5" in finding.because[-1]
