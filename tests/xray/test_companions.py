"""The reports beside a diagnosis: ranking, state and sensitivity say what the captures show."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cke.api.companions import FILES
from cke.api.diagnosis import ModelSubject, xray
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas import attention_sensitivity, ranking_report, state_report
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.trace import Record, Segment
from cke.xray.ranking import checks_of
from cke.xray.rows import badge_of
from tests.models import TinyModel
from tests.xray.synthetic import body_of, write_trace

SCHEMAS = {
    "ranking": ranking_report,
    "state": state_report,
    "sensitivity": attention_sensitivity,
}


def _read(folder: Path, name: str) -> Any:
    document: Any = SCHEMAS[name]
    data = folder.joinpath(FILES[document.SCHEMA]).read_bytes()
    return msgspec.json.decode(data, type=document.Document).body


@pytest.fixture(scope="module")
def clean(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Diagnosis, Path]:
    """A model without a fault, two decode steps, and its full replay."""
    out = tmp_path_factory.mktemp("clean")
    report = xray(
        tiny_model("llama"), oracle="pytorch", out=out, forced=((5,), (9,)), persistent=True
    )
    return report, out


pytestmark = [pytest.mark.oracle_torch]


@pytest.mark.slow
@pytest.mark.contract("XRAY-25")
@pytest.mark.contract("XRAY-50")
def test_companions_are_cited_by_file_and_digest(clean: tuple[Diagnosis, Path]) -> None:
    report, out = clean
    assert {item.schema: item.file for item in report.companions} == FILES
    for item in report.companions:
        document = json.loads(out.joinpath(item.file).read_text())
        assert (document["schema"], document["body_sha256"]) == (item.schema, item.body_sha256)
        assert not Path(item.file).is_absolute()
    assert report.oracle["producer"] == "pytorch"
    assert {"version", "dtype", "trace_sha256"} <= set(report.oracle)
    assert all(point.budget is not None for point in report.points)


@pytest.mark.slow
@pytest.mark.contract("XRAY-52")
def test_every_ranking_check_names_its_kind_and_phase(clean: tuple[Diagnosis, Path]) -> None:
    report, out = clean
    ranking = _read(out, "ranking")
    kinds = [(item.check, item.segment, item.phase) for item in ranking.checks]
    assert kinds == [
        ("mixed_prefill", 0, "PREFILL"),
        ("teacher_forced", 1, "TEACHER_FORCED"),
        ("teacher_forced", 2, "TEACHER_FORCED"),
        ("persistent_vs_replay", 1, "TEACHER_FORCED"),
        ("persistent_vs_replay", 2, "TEACHER_FORCED"),
    ]
    assert [item.badge for item in report.forwards] == ["PREFILL", *["TEACHER_FORCED"] * 2]
    assert all(item.agreeing == len(item.positions) for item in ranking.checks)
    assert ranking.first_flip is None


@pytest.mark.slow
@pytest.mark.contract("XRAY-53")
def test_stages_of_a_sound_cache_pass(clean: tuple[Diagnosis, Path]) -> None:
    state = _read(clean[1], "state")
    states = {stage.name: stage.state for stage in state.stages}
    assert states.pop("cache_layout") == "not_reached"
    assert set(states.values()) == {"passed"}
    assert [item.append_index for item in state.subject_forwards] == [(0,), (12,), (13,)]


@pytest.mark.slow
@pytest.mark.contract("XRAY-27")
def test_sensitivity_runs_every_ablation_and_gives_no_verdict(
    clean: tuple[Diagnosis, Path],
) -> None:
    report, out = clean
    sensitivity = _read(out, "sensitivity")
    layers = {row.layer for row in report.circuit} - {None}
    assert len(sensitivity.rows) == 3 * len(layers)
    assert sensitivity.skipped == ()
    for row in sensitivity.rows:
        assert [item.operands for item in row.ablations] == ["q", "k", "v", "qkv"]
        assert row.authority_error < 1e-6
    assert not {"verdict", "status", "fix_owner"} & set(sensitivity.__struct_fields__)
    assert report.verdict == "pass_within_gate"


@pytest.mark.slow
@pytest.mark.contract("XRAY-51")
@pytest.mark.contract("XRAY-41")
def test_every_op_has_a_row_with_its_provider_contracts_and_errors(
    clean: tuple[Diagnosis, Path],
) -> None:
    report, _ = clean
    graph = {(row.phase, row.step, row.op) for row in report.circuit}
    assert len(graph) == len(report.circuit) == 2 * report.coverage.ops_total
    assert {row.phase for row in report.circuit} == {"prefill", "decode"}
    chosen = {(item.phase, item.function, op): item for item in report.providers for op in item.ops}
    for row in report.circuit:
        resolution = chosen[row.phase, row.function, row.op]
        assert row.kernel_id == resolution.kernel_id
        assert row.required_contract_id == row.resolved_contract_id == resolution.contract_id
        assert row.stops
        assert None not in (row.max_abs, row.rmse, row.exact_ratio)
    by_op = {(row.phase, row.step, row.op): row for row in report.circuit}
    scores = by_op["prefill", "layer.0", "attention.sdpa"]
    assert [report.circuit[at].op for at in scores.reads] == [
        *("attention.rope", "attention.append", "attention.append", "attention.append")
    ]
    assert all(report.circuit[at].phase == row.phase for row in report.circuit for at in row.reads)
    rejected = [item for item in report.providers if item.rejections]
    assert all(r.stage and r.reason for item in rejected for r in item.rejections)
    assert rejected


class _Faulty(ModelSubject):
    """A subject whose captures are changed on the way."""

    @staticmethod
    def change(record: Record, array: Any) -> Any:
        raise NotImplementedError

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        whole = super().capture(request, out.with_name(f"{out.name}.whole"))
        with TraceWriter(out) as writer:
            for record in whole.trace.body.records:
                array = self.change(record, whole.array(record, digest))
                writer.add(msgspec.structs.replace(record, sha256=digest(array)), array)
            writer.close(whole.trace.body)
        return read_trace(out)


def _changed(
    monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel, out: Path, change: Any
) -> Diagnosis:
    monkeypatch.setattr(_Faulty, "change", staticmethod(change))
    monkeypatch.setattr("cke.api.diagnosis.ModelSubject", _Faulty)
    return xray(tiny_model("llama"), oracle="pytorch", out=out, forced=((5,), (9,)))


@pytest.mark.slow
@pytest.mark.contract("XRAY-53")
def test_a_row_cached_before_that_changes_breaks_its_stage_and_poisons_those_after(
    monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def change(record: Record, array: Any) -> Any:
        if record.role != "stored_key" or record.segment != 2 or record.layer != 0:
            return array
        array = array.copy()
        array[0, 3] *= 2
        return array

    _changed(monkeypatch, tiny_model, tmp_path, change)
    state = _read(tmp_path, "state")
    states = {stage.name: stage for stage in state.stages}
    assert state.first_broken == "previous_rows"
    assert [s.name for s in state.stages if s.state == "broken"] == ["previous_rows"]
    assert states["previous_rows"].segment == 2
    assert states["previous_rows"].checkpoint_id == "layer.0.attention.kv_append"
    assert states["round_trip"].state == "passed"
    assert states["valid_rows"].state == "poisoned"


@pytest.mark.slow
@pytest.mark.contract("XRAY-27")
def test_an_operand_that_is_off_shows_in_its_own_ablation_only(
    monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def change(record: Record, array: Any) -> Any:
        return array * np.float32(1.5) if record.role == "stored_value" else array

    _changed(monkeypatch, tiny_model, tmp_path, change)
    row = _read(tmp_path, "sensitivity").rows[0]
    by_name = {item.operands: item for item in row.ablations}
    assert by_name["v"].output_error == pytest.approx(0.5, rel=1e-5)
    assert by_name["v"].amplification == pytest.approx(1, rel=1e-4)
    assert by_name["qkv"].output_error == pytest.approx(0.5, rel=1e-5)
    assert by_name["q"].output_error < 1e-6
    assert by_name["k"].output_error < 1e-6


@pytest.mark.slow
@pytest.mark.contract("XRAY-1")
@pytest.mark.contract("XRAY-40")
def test_a_flip_inside_every_budget_is_a_ranking_divergence_without_an_owner(
    monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel, tmp_path: Path
) -> None:
    monkeypatch.setattr("cke.xray.diff.forward_error", _wide)
    monkeypatch.setattr("cke.xray.weights.weights_fault", lambda *_: (None, 0))

    def change(record: Record, array: Any) -> Any:
        return array[..., ::-1].copy() if record.checkpoint_id == "logits" else array

    report = _changed(monkeypatch, tiny_model, tmp_path, change)
    found = report.first_divergence
    assert found is not None
    assert (found.failure_class, found.stage) == ("RANKING_DIVERGENCE", "behaviour")
    assert found.fix_owner is None
    assert (report.status, report.verdict) == ("incomplete", "behavioral_divergence")
    assert report.next_probe is not None
    assert "--oracle reference" in report.next_probe.command
    ranking = _read(tmp_path, "ranking")
    assert ranking.first_flip == report.first_flip
    at = report.first_material
    assert at is not None
    assert report.points[at].checkpoint_id == "logits"


def _wide(*arguments: Any) -> Any:
    from cke.schemas.numerical_report import Gate

    return Gate(rule="forward_error", relative_rmse=1e9, max_abs=None, reduction=1, depth=0)


def test_margins_ties_and_the_first_k_are_counted(tmp_path: Path) -> None:
    request = CaptureRequest(tokens=((1, 2), (3,)))
    mine = np.zeros((2, 2, 8), np.float32)
    mine[0, 0, :3] = (3, 2, 1)
    mine[0, 1, :2] = (2, 2)
    mine[1, 0, 4] = 1
    theirs = mine.copy()
    theirs[0, 0, :3] = (2, 3, 1)
    theirs[0, 1, :2] = (2, 1)
    theirs[1, 0, 4:6] = (1, 0.25)
    sides = [
        write_trace(tmp_path / side, request, [("logits", ("B", "T", "V"), logits)], side)
        for side, logits in (("subject", mine), ("oracle", theirs))
    ]
    (check,) = checks_of(*sides)
    flip, tie, alone = check.positions
    assert (flip.subject_first, flip.oracle_first, flip.agrees) == (0, 1, False)
    assert (flip.subject_margin, flip.oracle_margin, flip.max_abs) == (1, 1, 1)
    assert (tie.agrees, tie.subject_margin, tie.oracle_margin) == (True, 0, 1)
    assert (alone.row, alone.column, alone.oracle_margin) == (1, 0, 0.75)
    assert check.agreeing == 2
    assert check.least_margin == 0.75
    assert flip.overlap == 5


def test_decode_of_selected_tokens_has_a_badge_of_its_own() -> None:
    segment: Segment = body_of(CaptureRequest(tokens=((1,),), forced=((2,),))).segments[1]
    assert badge_of(segment) == "TEACHER_FORCED"
    assert badge_of(msgspec.structs.replace(segment, teacher_forced=False)) == "DECODE"
