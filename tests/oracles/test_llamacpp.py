"""The llama.cpp oracle against the transformers oracle, on the same random weights."""

from pathlib import Path

import pytest

from cke.errors import CkeError
from cke.oracles.gguf_writer import write_gguf
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.numerical_report import Row
from cke.xray.diff import diff_traces
from tests.models import TinyModel

pytestmark = [pytest.mark.oracle_llamacpp, pytest.mark.oracle_torch]

REQUEST = CaptureRequest(
    tokens=((1, 2, 3, 4, 5, 6, 7, 8), (7, 8, 9)), segments=(5, 8), forced=((10, 11), (12, 13))
)
# What llama.cpp fixes in code and a file cannot say: Gemma's scale is that of the head width,
# qwen3moe always normalises its router weights.
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mixtral": {},
    "qwen3_moe": {"norm_topk_prob": True},
}


# Edges without a name, which transformers' modules show and llama.cpp's graph has no name for: the
# lookup before its scale, the activation inside a fused gate, the logits before their cap.
UNNAMED = ("edge/x/embedding", "edge/mlp/h/silu", "edge/mlp/h/gelu_tanh", "edge/y/linear")


def _named(rows: tuple[Row, ...]) -> list[Row]:
    return [
        row
        for row in rows
        if not (row.status == "subject_only" and row.checkpoint_id.endswith(UNNAMED))
    ]


def _trace(oracle: object, out: Path) -> TraceFolder:
    with TraceWriter(out) as writer:
        writer.close(oracle.capture(REQUEST, writer))  # type: ignore[attr-defined]
    return read_trace(out)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_live_oracles_agree_at_every_checkpoint(
    family: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle
    from cke.oracles.pytorch import PyTorchOracle

    folder = tiny_model(family, **FAMILIES[family])
    theirs = _trace(LlamaCppOracle(write_gguf(folder, tmp_path / "m.gguf")), tmp_path / "llamacpp")
    ours = _trace(PyTorchOracle(folder), tmp_path / "pytorch")
    report = diff_traces(ours, theirs)
    over = [
        (row.checkpoint_id, row.role, row.segment, row.status)
        for row in _named(report.rows)
        if row.status not in ("exact", "within")
    ]
    assert over == []
    assert report.verdict == "pass_within_gate"
    unnamed = len(report.rows) - len(_named(report.rows))
    assert report.coverage.compared == report.coverage.subject_captured - unnamed


# llama.cpp reads GELU from a table of f16 values, so Gemma agrees up to the first activation, and
# then within what f16 rounds.
GELU_TABLE = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "layer_types": None},
}


@pytest.mark.parametrize("family", GELU_TABLE)
def test_gemma_agrees_up_to_the_table_of_gelu(
    family: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle
    from cke.oracles.pytorch import PyTorchOracle

    folder = tiny_model(family, **GELU_TABLE[family])
    theirs = _trace(LlamaCppOracle(write_gguf(folder, tmp_path / "m.gguf")), tmp_path / "llamacpp")
    report = diff_traces(_trace(PyTorchOracle(folder), tmp_path / "pytorch"), theirs)
    over = [row for row in report.rows if row.status == "over"]
    assert over[0].checkpoint_id == "layer.0.mlp.mlp_gated_activation"
    assert {row.status for row in _named(report.rows)} <= {"exact", "within", "over"}
    half = 2.0**-11
    assert max(row.metrics.relative_rmse or 0 for row in report.rows if row.metrics) < 8 * half


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_files_are_written_in_low_precision(
    dtype: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle

    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", dtype)
    trace = _trace(LlamaCppOracle(path), tmp_path / "trace")
    assert trace.trace.body.producer.dtype == dtype
    assert trace.trace.body.neutrality.outputs_equal


def test_a_file_that_llamacpp_refuses_is_an_error(tmp_path: Path) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle

    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(CkeError, match=r"CKE714\]: llama.cpp does not load this file"):
        LlamaCppOracle(tmp_path / "bad.gguf")


def test_tokens_that_llamacpp_cannot_decode_are_an_error(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle

    oracle = LlamaCppOracle(write_gguf(tiny_model("llama"), tmp_path / "m.gguf"))
    with pytest.raises(CkeError, match=r"CKE715\]: llama.cpp decodes with status -1"):
        oracle.logits(CaptureRequest(tokens=((1, 500),)))
