"""The llama.cpp oracle against the transformers oracle, on the same random weights."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import UNSET

from cke.errors import CkeError
from cke.oracles.gguf_writer import write_gguf
from cke.runtime.records import digest
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
    "mistral": {"sliding_window": 64},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
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


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_what_passed_through_the_table_of_gelu_says_so(
    family: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle

    folder = tiny_model(family, **FAMILIES[family])
    trace = _trace(LlamaCppOracle(write_gguf(folder, tmp_path / "m.gguf")), tmp_path / "llamacpp")
    records = {(r.segment, r.checkpoint_id): r for r in trace.trace.body.records}
    told = {key: (record.computed, record.through) for key, record in records.items()}
    assert told[0, "layer.0.mlp_norm_output"] == (UNSET, UNSET)
    assert told[0, "layer.0.mlp.mlp_gated_activation"] == ("fp16", "fp16")
    assert told[0, "layer.1.layer_input"] == told[0, "logits"] == (UNSET, "fp16")
    assert told[1, "layer.0.attention.attention_context"] == (UNSET, UNSET)
    gate, up, made = (
        trace.array(records[0, f"layer.0.mlp.{name}"], digest)[0].astype(np.float64)
        for name in ("mlp_gate_projection", "mlp_up_projection", "mlp_gated_activation")
    )
    table = 0.5 * gate * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    error = np.abs(table * up - made) / np.abs(made)
    assert 2.0**-13 < np.median(error[np.abs(gate) > 0.1]) < 2.0**-10


@pytest.mark.parametrize(
    ("family", "path", "computed", "value"),
    [
        ("gemma2", "query_pre_attn_scalar", 16, 20),
        ("gemma3", "query_pre_attn_scalar", 16, 20),
        ("qwen3_moe", "norm_topk_prob", True, False),
    ],
)
def test_what_a_file_cannot_tell_llamacpp_is_refused(
    family: str, path: str, computed: object, value: object, tiny_model: TinyModel, tmp_path: Path
) -> None:
    with pytest.raises(CkeError) as caught:
        write_gguf(tiny_model(family), tmp_path / "m.gguf")
    assert f"`$.{path}`: error[CKE713]: llama.cpp computes " in str(caught.value)
    assert f"with {computed} whatever the file says: expected that, got {value}" in str(
        caught.value
    )
    assert not (tmp_path / "m.gguf").exists()


def test_tokens_beyond_a_window_that_llamacpp_leaves_out_are_refused(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.llamacpp import LlamaCppOracle

    oracle = LlamaCppOracle(write_gguf(tiny_model("mistral"), tmp_path / "m.gguf"))
    with pytest.raises(CkeError) as caught:
        _trace(oracle, tmp_path / "trace")
    assert (
        "error[CKE716]: llama.cpp has no window in `llama`: expected at most the 6 tokens of the "
        "model's window, got 10" in str(caught.value)
    )


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
