"""Dumps of transformers' model debugger, made by transformers itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.api.evidence import oracle_trace
from cke.api.oracle_evidence import import_dump
from cke.cli import main
from cke.errors import CkeError, RejectedError
from cke.oracles.debugger import TREE
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import read_trace
from cke.xray.diff import diff_traces
from tests.models import TinyModel

pytestmark = pytest.mark.oracle_torch

TOKENS = (5, 9, 2, 7)
REQUEST = CaptureRequest(tokens=(TOKENS,))


def _dump(folder: Path, out: Path, use_repr: bool) -> Path:
    import torch
    from transformers.model_debugging_utils import model_addition_debugger_context

    from cke.oracles.pytorch import load_model

    model = load_model(folder, "f32")
    with model_addition_debugger_context(
        model, debug_path=str(out), do_prune_layers=False, use_repr=use_repr
    ):
        model(input_ids=torch.tensor([TOKENS]))
    return out


@pytest.fixture(scope="module")
def model(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen2", num_hidden_layers=2)


@pytest.fixture(scope="module")
def dump(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _dump(model, tmp_path_factory.mktemp("debugger") / "dump", use_repr=False)


def test_full_tensors_are_those_of_the_live_oracle(model: Path, dump: Path, tmp_path: Path) -> None:
    trace, facts = import_dump(dump, model, REQUEST, tmp_path / "dump")
    assert facts.findings == ()
    assert facts.checked["tokens"] > 4
    oracle_trace(model, "pytorch", REQUEST, tmp_path / "live")
    live, recorded = read_trace(tmp_path / "live"), read_trace(tmp_path / "dump")
    report = diff_traces(live, recorded)
    assert {row.status for row in report.rows} == {"exact", "subject_only"}
    assert report.coverage.compared == len(trace.body.records) >= 28
    assert trace.body.producer.dtype == "f32"
    assert "version" in trace.body.producer.declared


def test_printed_numbers_give_summaries_and_no_values(model: Path, tmp_path: Path) -> None:
    dump = _dump(model, tmp_path / "dump", use_repr=True)
    trace, _ = import_dump(dump, model, REQUEST, tmp_path / "trace")
    assert {record.tensor_path for record in trace.body.records} == {None}
    oracle_trace(model, "pytorch", REQUEST, tmp_path / "live")
    live = read_trace(tmp_path / "live")
    arrays = {
        record.checkpoint_id: live.array(record, digest)
        for record in live.trace.body.records
        if record.role is None
    }
    for record in trace.body.records:
        values = np.asarray(arrays[record.checkpoint_id], np.float64)
        assert record.shape == values.shape
        assert record.summary.l2 == pytest.approx(np.linalg.norm(values), rel=1e-3)
        assert record.summary.max == pytest.approx(values.max(), rel=1e-3)


def test_a_dump_of_other_tokens_is_refused(model: Path, dump: Path, tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match="CKE747"):
        import_dump(dump, model, CaptureRequest(tokens=((5, 9, 2, 8),)), tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_a_tree_without_checkpoints_is_refused(model: Path, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"module_path": "Other", "inputs": {}, "children": []}
    (tmp_path / f"Other{TREE}").write_text(json.dumps(tree))
    with pytest.raises(RejectedError, match=r"CKE746\]: expected modules that show checkpoints"):
        import_dump(tmp_path, model, REQUEST, tmp_path / "trace")


def test_a_folder_that_is_no_debugger_dump_needs_a_mapping(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CkeError, match=r"CKE740\]: expected a mapping file for this dump"):
        import_dump(tmp_path, model, REQUEST, tmp_path / "trace")


def test_a_dump_whose_values_contradict_what_is_declared_exits_with_four(
    model: Path, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = " ".join(map(str, TOKENS))
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        """
schema = "cke.oracle_mapping"
version = 1
layers = 2
sizes = { H = 4, K = 2, E = 8 }
ignore = ["*"]
producer = { name = "engine", version = "1", dtype = "f32" }
[[tensor]]
checkpoint = "layer.{L}.layer_input"
file = "Qwen2ForCausalLM.model.layers.{L}_inputs_args_0.safetensors"
axes = "B T D"
[[tensor]]
checkpoint = "embedding"
file = "Qwen2ForCausalLM.model.layers.0_inputs_args_0.safetensors"
axes = "B T D"
"""
    )
    arguments = ["oracle", "import", str(dump), "--model", str(model), "--mapping", str(mapping)]
    good = [*arguments, "--tokens", tokens, "--out", str(tmp_path / "good")]
    assert main(good) == 0
    told = capsys.readouterr().out
    assert "declared, not measured: name, version, dtype, settings, axes, tokens" in told
    lying = [*arguments, "--tokens", "6 9 2 7", "--out", str(tmp_path / "lying")]
    assert main(lying) == 4
    told = capsys.readouterr().out
    assert "INPUT_TOKEN_MISMATCH at embedding: tokens declared 6 9 2 7, measured 5 9 2 7" in told
