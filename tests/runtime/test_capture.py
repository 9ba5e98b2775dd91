"""Capture of a subject: complete, canonical, and proven neutral."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cke.api
from cke.api.evidence import oracle_trace, subject_trace
from cke.errors import CkeError
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import read_trace
from cke.xray.diff import diff_traces
from tests.models import TinyModel

REQUEST = CaptureRequest(
    tokens=((1, 2, 3, 4, 5, 6, 7, 8), (7, 8, 9)), segments=(5, 8), forced=((10, 11), (12, 13))
)


@pytest.fixture(scope="module")
def llama(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", num_hidden_layers=2)


def _subject(folder: Path, out: Path, dtype: str = "float32") -> Any:
    subject_trace(cke.api.load(folder, dtype=dtype), REQUEST, out)
    return read_trace(out)


@pytest.mark.oracle_torch
@pytest.mark.contract("XRAY-22")
@pytest.mark.contract("XRAY-23")
def test_every_edge_is_captured_neutrally_and_agrees_with_both_oracles(
    llama: Path, tmp_path: Path
) -> None:
    subject = _subject(llama, tmp_path / "subject")
    body = subject.trace.body
    assert body.neutrality.status == "neutral"
    assert len(body.records) == body.edges_total * len(body.segments)
    made = [record for record in body.records if record.kernel_id is not None]
    assert all(record.numerical_contract_id is not None for record in made)
    # what no kernel made is a parameter of a layer, or equals an edge that a kernel made
    others = {r.checkpoint_id.split(".")[-1] for r in body.records if r.kernel_id is None}
    assert others <= {"layer_input"}
    for name in ("pytorch", "reference"):
        oracle_trace(llama, name, REQUEST, tmp_path / name)
        report = diff_traces(subject, read_trace(tmp_path / name))
        assert report.verdict == "pass_within_gate", name
        others = [row for row in report.rows if row.status not in ("exact", "within")]
        # transformers keeps no positions beside its keys
        hidden = "key_positions/append" if name == "pytorch" else "nothing"
        assert [row.checkpoint_id for row in others if not row.checkpoint_id.endswith(hidden)] == []
        assert all(item.holds for item in report.conservation)


@pytest.mark.contract("XRAY-24")
def test_the_schedule_is_recorded_with_its_kernel_batches(llama: Path, tmp_path: Path) -> None:
    body = _subject(llama, tmp_path / "subject").trace.body
    assert [segment.cache_action for segment in body.segments] == ["reset"] + ["append"] * 3
    assert [segment.append_index for segment in body.segments] == [(0, 0), (5, 3), (8, 3), (9, 4)]
    kernels = {batch.kernel_id for batch in body.segments[0].kernel_batches}
    assert kernels >= {record.kernel_id for record in body.records} - {None}
    assert body.cache_layout is not None
    assert body.cache_layout.token_stride == 2 * 8


@pytest.mark.contract("XRAY-22")
def test_a_run_that_does_not_repeat_is_named_and_gives_no_capture(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.runtime import capture

    rng = np.random.default_rng(0)
    run = capture._run

    def noisy(*arguments: Any) -> Any:
        outputs = run(*arguments)
        return [outputs[0] + rng.standard_normal(outputs[0].shape).astype(np.float32), *outputs[1:]]

    monkeypatch.setattr(capture, "_run", noisy)
    body = _subject(llama, tmp_path / "subject").trace.body
    assert (body.neutrality.status, body.neutrality.control_equal) == ("rejected", False)
    assert body.records == ()


@pytest.mark.contract("XRAY-22")
def test_a_capture_that_changes_a_bit_is_isolated_or_rejected(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.runtime import capture

    run = capture._run

    def disturbed(driver: Any, subject: Any, segments: Any, emit: Any = None) -> Any:
        outputs = run(driver, subject, segments, emit)
        if emit is not None and "mlp_norm_output" in driver.package.manifest.capture:
            outputs[0] = np.nextafter(outputs[0], np.float32(np.inf))
        return outputs

    monkeypatch.setattr(capture, "_run", disturbed)
    model = cke.api.load(llama)
    request = CaptureRequest(
        tokens=((1, 2, 3),), edges=frozenset({"mlp_norm_output", "layer_output"})
    )
    trace = subject_trace(model, request, tmp_path / "subject")
    assert trace.body.neutrality.status == "isolated"
    assert trace.body.neutrality.isolated == ("layer_output",)
    assert {record.checkpoint_id.split(".")[-1] for record in trace.body.records} == {
        "layer_output"
    }


def test_captured_values_are_canonical(llama: Path, tmp_path: Path) -> None:
    subject = _subject(llama, tmp_path / "subject")
    for record in subject.trace.body.records:
        if record.checkpoint_id == "layer.0.attention.attention_probabilities":
            array = subject.array(record, digest)
            segment = subject.trace.body.segments[record.segment]
            assert array.shape[-1] == max(segment.cache_token_count)
            assert np.all(array[1, ..., segment.cache_token_count[1] :] == 0)


def test_an_unknown_edge_is_refused_with_near_names(llama: Path, tmp_path: Path) -> None:
    request = CaptureRequest(tokens=((1, 2),), edges=frozenset({"layer_outptu"}))
    with pytest.raises(CkeError) as caught:
        subject_trace(cke.api.load(llama), request, tmp_path / "subject")
    assert str(caught.value).startswith(
        "error[CKE722]: expected the name of a checkpoint, got `layer_outptu`\n"
        "  help: did you mean `layer_output`?"
    )
    assert not (tmp_path / "subject").exists()
