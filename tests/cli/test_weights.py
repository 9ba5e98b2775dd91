"""`cke weights`: every weight with its tensor, both name maps, nothing left over."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cke.cli import main
from tests.models import TinyModel


def test_a_trained_model_is_accounted_for(
    mathformer_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(mathformer_models["addformer"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(" {2,}", lines[3]) == [
        "layer.{L}.attention.q_proj.weight",
        "[H 2 E 4 D 8]",
        "F32",
        "axes",
        "model.layers.{L}.self_attn.q_proj.weight",
        "blk.{L}.attn_q.weight",
    ]
    assert lines[-2:] == [
        "addformer (hf) by llama@1: 12 weights, 0 of them tied, 1,480 parameters",
        "12 tensors used, 0 ignored, none left over",
    ]


@pytest.mark.real_model
def test_both_name_maps_are_given_for_a_gguf_file(
    smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(smollm2_gguf), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["semantic"]: row for row in report["weights"]}
    assert (len(rows), report["parameters"], report["circuit"]) == (273, 134_515_008, "llama")
    assert rows["layer.29.attention.k_proj.weight"]["hf"] == [
        "model.layers.29.self_attn.k_proj.weight"
    ]
    assert rows["layer.29.attention.k_proj.weight"]["gguf"] == ["blk.29.attn_k.weight"]
    assert rows["layer.29.attention.k_proj.weight"]["storage"] == ["Q4_1"]
    assert rows["head.weight"]["tied_to"] == "embed.weight"
    assert len(report["coverage"]["used"]) == 272


@pytest.mark.oracle_torch
def test_experts_and_splits_show_every_layer_when_asked(
    tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(tiny_model("qwen3_moe")), "--all"]) == 0
    out = capsys.readouterr().out
    first = "model.layers.2.mlp.experts.0.gate_proj.weight"
    assert f"{first} … {first.replace('experts.0', 'experts.5')} (6)" in out
    assert "blk.2.ffn_gate_exps.weight" in out
    assert main(["weights", str(tiny_model("gpt2")), "--format", "markdown"]) == 0
    assert (
        "| layer.{L}.attention.k_proj.weight x3 | [K 4 E 8 D 32] | F32 | split, conv1d | "
        "transformer.h.{L}.attn.c_attn.weight | blk.{L}.attn_qkv.weight |"
    ) in capsys.readouterr().out


def changed(model: Path, folder: Path, **tensors: np.ndarray | None) -> Path:
    """A copy of a model folder with tensors replaced, added, or removed by None."""
    shutil.copytree(model, folder)
    found = {**load_file(folder / "model.safetensors"), **tensors}
    kept = {key: value for key, value in found.items() if value is not None}
    save_file(kept, folder / "model.safetensors")
    return folder


def test_missing_extra_and_misshapen_tensors_are_all_errors(
    mathformer_models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {
        "model.norm.weight": None,
        "model.layers.0.mlp.up_proj.weight": np.zeros((8, 8), np.float32),
        "model.stray": np.zeros(3, np.float32),
    }
    folder = changed(mathformer_models["addformer"], tmp_path / "m", **tensors)
    assert main(["weights", str(folder)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error[CKE450]: no tensor for `final.weight`: tried `model.norm.weight`" in shown.err
    assert "m: `model.stray`: error[CKE452]: this tensor is neither used nor ignored" in shown.err
    assert "m: `model.layers.0.mlp.up_proj.weight`: error[CKE451]: expected [32, 8]" in shown.err


def test_a_path_without_a_model_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(tmp_path / "none")]) == 3
    assert "error[CKE400]" in capsys.readouterr().err


def test_a_format_that_says_nothing_here_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", str(tmp_path / "none"), "--format", "sarif"]) == 2
    assert "error[CKE906]" in capsys.readouterr().err


@pytest.mark.real_model
@pytest.mark.oracle_torch
def test_pickled_weights_are_read_only_when_asked_for(
    microformer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["weights", str(microformer_dir)], ["run", "--model", str(microformer_dir)]):
        more = ["--tokens", "1"] if command[0] == "run" else []
        assert main([*command, *more]) == 2
        assert "error[CKE403]: expected `model.safetensors`" in capsys.readouterr().err
    assert main(["weights", str(microformer_dir), "--allow-pickle"]) == 0
    assert "general_model (hf) by gpt2@1: 133 weights" in capsys.readouterr().out
