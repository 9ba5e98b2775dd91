"""Capture of a subject: complete, canonical, and proven neutral."""

import inspect
import itertools
import types
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

import cke.api
from cke.api.evidence import oracle_trace, subject_trace
from cke.api.model import Model
from cke.errors import CkeError
from cke.runtime.drivers import PerLayer
from cke.runtime.edges import select_edges
from cke.runtime.gated_writer import GatedWriter
from cke.runtime.records import digest, summarise
from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.runtime.trace_body import kernel_batches
from cke.runtime.trace_reader import read_trace
from cke.runtime.validity import valid_mask
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


class _Noisy:
    """A driver whose every forward differs in the last bit of one logit."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def run(self, *arguments: Any) -> Any:
        found = self.driver.run(*arguments)
        logits = np.array(found.outputs[0])
        self.calls += 1
        logits.flat[0] = logits.flat[0] + np.float32(self.calls)
        return found._replace(outputs=(jax.numpy.asarray(logits), *found.outputs[1:]))


@pytest.mark.contract("XRAY-22")
@pytest.mark.contract("XRAY-44")
def test_a_runtime_that_does_not_repeat_is_named_and_gives_no_capture(
    llama: Path, tmp_path: Path
) -> None:
    model = cke.api.load(llama)
    model._drivers["per_layer"] = _Noisy(model.driver("per_layer"))
    body = subject_trace(model, REQUEST, tmp_path / "subject").body
    gate = body.neutrality
    assert (gate.status, gate.control_equal) == ("rejected", False)
    assert gate.finding == "RUNTIME_NOT_REPEATABLE"
    assert gate.differing == tuple(f"segment.{index}.logits" for index in range(4))
    assert body.records == ()


def _shifted(names: tuple[str, ...], kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make packages that capture one of `names` run a kernel whose result is an ulp larger."""
    build = Model.capturing

    def built(model: Model, patterns: tuple[str, ...]) -> Any:
        package = build(model, patterns)
        if not set(names) & set(patterns):
            return package
        modules = {phase: types.ModuleType(phase) for phase in package.modules}
        for phase, module in modules.items():
            source = inspect.getsource(package.modules[phase])
            exec(compile(source, str(package.modules[phase].__file__), "exec"), module.__dict__)
            module.__file__ = package.modules[phase].__file__
            original = getattr(module, kernel)

            def shifted(*arguments: Any, original: Any = original, **named: Any) -> Any:
                return jax.numpy.nextafter(original(*arguments, **named), jax.numpy.inf)

            setattr(module, kernel, shifted)
        return msgspec.structs.replace(package, modules=modules)

    monkeypatch.setattr(Model, "capturing", built)


@pytest.mark.contract("XRAY-22")
@pytest.mark.contract("XRAY-43")
def test_a_kernel_whose_bits_change_under_capture_is_rejected_and_labelled(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _shifted(("mlp_norm_output",), "silu", monkeypatch)
    request = CaptureRequest(tokens=((1, 2, 3),), edges=frozenset({"mlp_norm_output"}))
    trace = subject_trace(cke.api.load(llama), request, tmp_path / "subject")
    gate = trace.body.neutrality
    assert (gate.status, gate.finding) == ("rejected", "CAPTURE_NOT_NEUTRAL")
    assert gate.rejected == ("mlp_norm_output",)
    assert "segment.0.logits" in gate.differing
    assert trace.body.records == ()
    kept = read_trace(tmp_path / "subject.rejected").trace.body
    assert kept.neutrality.status == "rejected"
    assert len(kept.records) == 2


@pytest.mark.contract("XRAY-22")
@pytest.mark.parametrize("level", ["tensor", "summary"])
def test_what_is_neutral_alone_is_kept_when_the_whole_is_not(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Any
) -> None:
    _shifted(("mlp_norm_output",), "silu", monkeypatch)
    request = CaptureRequest(
        tokens=((1, 2, 3),),
        edges=frozenset({"mlp_norm_output", "layer.1.layer_output"}),
        level=level,
    )
    trace = subject_trace(cke.api.load(llama), request, tmp_path / "subject")
    gate = trace.body.neutrality
    assert (gate.status, gate.isolated, gate.rejected) == (
        "isolated",
        ("layer_output",),
        ("mlp_norm_output",),
    )
    assert [record.checkpoint_id for record in trace.body.records] == ["layer.1.layer_output"]
    kept = read_trace(tmp_path / "subject.rejected").trace.body
    assert (kept.neutrality.status, len(kept.records)) == ("rejected", 3)


@pytest.mark.contract("XRAY-54")
def test_the_effective_contract_is_that_of_the_loaded_kernel(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.kernel_registry.kernels.rms_norm_wide import rms_norm_wide

    model = cke.api.load(llama)
    for module in model.package.modules.values():
        monkeypatch.setattr(module, "rms_norm", rms_norm_wide)
    batches = kernel_batches(model.package, plan_segments(REQUEST)[0])
    by_kernel = {item.kernel_id: item for item in batches}
    norm = by_kernel.pop("rms_norm")
    assert norm.numerical_contract_id == "rms_norm.sum_f32.round_normalized.v1"
    assert norm.effective_contract_id == "rms_norm.sum_f32.round_output.v1"
    assert all(
        item.effective_contract_id == item.numerical_contract_id for item in by_kernel.values()
    )


@pytest.mark.contract("XRAY-23")
def test_a_summary_has_the_numbers_and_the_digest_of_the_tensor(
    llama: Path, tmp_path: Path
) -> None:
    model = cke.api.load(llama)
    tensors = subject_trace(model, REQUEST, tmp_path / "tensors").body
    short = msgspec.structs.replace(REQUEST, level="summary")
    summaries = subject_trace(model, short, tmp_path / "summaries").body
    assert summaries.neutrality.status == "neutral"
    folder = read_trace(tmp_path / "tensors")
    assert len(summaries.records) == len(tensors.records)
    for kept, whole in zip(summaries.records, tensors.records, strict=True):
        assert (kept.level, kept.tensor_path) == ("summary", None)
        assert kept.sha256 == whole.sha256, kept.checkpoint_id
        mask = valid_mask(whole.axes, whole.shape, tensors.segments[whole.segment])
        expected = summarise(folder.array(whole, digest), mask)
        for summary in (kept.summary, whole.summary):
            assert (summary.min, summary.max) == (expected.min, expected.max), kept.checkpoint_id
            assert (summary.nan, summary.inf) == (expected.nan, expected.inf)
            assert summary.mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-12)
            assert summary.l2 == pytest.approx(expected.l2, rel=1e-9)


def test_a_summary_without_digests_has_none(llama: Path, tmp_path: Path) -> None:
    request = CaptureRequest(tokens=((1, 2),), level="summary", digests=False)
    body = subject_trace(cke.api.load(llama), request, tmp_path / "s").body
    assert body.records
    assert {record.sha256 for record in body.records} == {None}


def test_captures_of_a_layer_are_written_before_the_next_layer_runs(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    function, add = PerLayer.run, GatedWriter.add

    def run(driver: Any, *arguments: Any) -> Any:
        callables = driver._callables[arguments[0]]
        for name, call in list(callables.items()):

            def noted(*operands: Any, name: str = name, call: Any = call) -> Any:
                events.append(name)
                return call(*operands)

            callables[name] = noted
        return function(driver, *arguments)

    def added(sink: Any, record: Any, array: Any) -> None:
        events.append("write")
        add(sink, record, array)

    monkeypatch.setattr(PerLayer, "run", run)
    monkeypatch.setattr(GatedWriter, "add", added)
    subject_trace(cke.api.load(llama), CaptureRequest(tokens=((1, 2, 3),)), tmp_path / "s")
    captured = [name for name, _ in itertools.groupby(events[events.index("write") - 1 :])]
    assert captured == ["embed", "write", "layer", "write", "layer", "write", "head", "write"]


def test_a_range_of_stops_is_a_choice_of_edges(llama: Path, tmp_path: Path) -> None:
    model = cke.api.load(llama)
    whole = subject_trace(model, CaptureRequest(tokens=((1, 2),)), tmp_path / "whole").body
    request = CaptureRequest(tokens=((1, 2),), edges=frozenset({"10:14", "logits"}))
    body = subject_trace(model, request, tmp_path / "part").body
    expected = [r.checkpoint_id for r in whole.records if 10 <= (r.order or 0) < 14]
    assert [record.checkpoint_id for record in body.records] == [*expected, "logits"]


def test_a_range_beyond_the_last_stop_is_refused(llama: Path) -> None:
    with pytest.raises(CkeError) as caught:
        select_edges(cke.api.load(llama).package, ["50:90"])
    assert str(caught.value) == (
        "error[CKE722]: expected stops from 0 to 61 as `start:stop`, got `50:90`"
    )


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
