"""What a comparison says beside its numbers."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cke.errors import RejectedError
from cke.runtime.records import record_of
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import DOCUMENT, TENSORS, TraceWriter, body_sha256
from cke.schemas.trace import Trace
from cke.xray.diff import diff_traces
from tests.xray.synthetic import body_of, write_trace

REQUEST = CaptureRequest(tokens=((1, 2, 3),), forced=((4,),))
AXES = ("B", "T", "D")


def _values(error: float = 0.0) -> list:
    generator = np.random.default_rng(0)
    found = []
    for segment, width in enumerate((3, 1)):
        for name in ("embedding", "layer.0.layer_output"):
            array = generator.standard_normal((1, width, 8)).astype(np.float32)
            found.append((name, AXES, array + np.float32(error), "", segment))
        logits = generator.standard_normal((1, width, 5)).astype(np.float32)
        found.append(("logits", ("B", "T", "V"), logits, "", segment))
    return found


@pytest.mark.contract("XRAY-42")
def test_nothing_is_inferred_from_the_names_of_tensor_files(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values())
    before = diff_traces(subject, write_trace(tmp_path / "b", REQUEST, _values(1e-3), "oracle"))
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    (tmp_path / "c" / TENSORS).rename(tmp_path / "c" / "other.bin")
    document = tmp_path / "c" / DOCUMENT
    trace = msgspec.json.decode(document.read_bytes(), type=Trace)
    records = tuple(
        msgspec.structs.replace(r, tensor_path=(r.tensor_path or "").replace(TENSORS, "other.bin"))
        for r in trace.body.records
    )
    body = msgspec.structs.replace(trace.body, records=records)
    moved = msgspec.structs.replace(trace, body=body, body_sha256=body_sha256(body))
    document.write_bytes(msgspec.json.encode(moved))
    after = diff_traces(subject, read_trace(tmp_path / "c"))
    same = msgspec.structs.replace(after, oracle=before.oracle)
    assert same == before
    assert before.oracle["family"] == "toy"


@pytest.mark.contract("XRAY-52")
def test_every_ranking_names_its_kind_of_check(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values())
    report = diff_traces(subject, write_trace(tmp_path / "b", REQUEST, _values(), "oracle"))
    assert [(r.check, r.segment) for r in report.rankings] == [
        ("mixed_prefill", 0),
        ("teacher_forced", 1),
    ]


@pytest.mark.contract("XRAY-10")
def test_two_engines_pass_by_their_budget_and_not_by_their_bits(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values())
    report = diff_traces(subject, write_trace(tmp_path / "b", REQUEST, _values(1e-7), "oracle"))
    assert report.verdict == "pass_within_gate"
    assert not all(row.metrics.byte_exact for row in report.rows if row.metrics)


@pytest.mark.contract("XRAY-14")
def test_what_follows_the_first_failure_is_measured_too(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values())
    report = diff_traces(subject, write_trace(tmp_path / "b", REQUEST, _values(0.5), "oracle"))
    assert report.first_over_gate == 0
    assert all(row.metrics is not None for row in report.rows)
    assert report.verdict == "cosmetic_drift"


def _summarised(out: Path, error: float) -> TraceFolder:
    """An oracle's trace of summaries and digests."""
    with TraceWriter(out) as writer:
        for name, axes, array, _, segment in _values(error):
            kept = record_of(
                array,
                name="layer_output" if name.startswith("layer.") else name,
                layer=0 if name.startswith("layer.") else None,
                phase="decode" if segment else "prefill",
                segment=segment,
                axes=axes,
            )
            writer.note(kept)
        writer.close(body_of(REQUEST, "oracle"))
    return read_trace(out)


def test_a_summary_never_proves_that_a_row_is_within(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values(1e-7))
    oracle = _summarised(tmp_path / "b", 0.0)
    report = diff_traces(subject, oracle)
    rows = [row for row in report.rows if row.checkpoint_id != "logits"]
    assert {row.status for row in rows} == {"summary"}
    assert (report.status, report.verdict) == ("incomplete", None)
    assert rows[0].detail is not None
    assert rows[0].detail.startswith("min ")
    assert report.coverage.compared == 2


def test_a_summary_proves_that_a_row_is_over(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values(0.5))
    report = diff_traces(subject, _summarised(tmp_path / "b", 0.0))
    assert report.rows[0].status == "summary_over"
    assert report.first_over_gate == 0
    assert report.verdict == "cosmetic_drift"


@pytest.mark.contract("XRAY-10")
def test_equal_digests_are_exact_without_values(tmp_path: Path) -> None:
    subject = write_trace(tmp_path / "a", REQUEST, _values())
    report = diff_traces(subject, _summarised(tmp_path / "b", 0.0))
    assert {(row.status, row.detail) for row in report.rows} == {("exact", "equal digests")}
    assert report.byte_exact_prefix == len(report.rows)
    assert (report.status, report.verdict) == ("complete", "pass_within_gate")
    assert all(ranking.flips == () for ranking in report.rankings)


def test_what_the_gate_rejected_is_not_compared(tmp_path: Path) -> None:
    body = body_of(REQUEST)
    gate = msgspec.structs.replace(body.neutrality, status="rejected", outputs_equal=False)
    rejected = msgspec.structs.replace(body, neutrality=gate)
    subject = write_trace(tmp_path / "a", REQUEST, _values(), body=rejected)
    oracle = write_trace(tmp_path / "b", REQUEST, _values(), "oracle")
    with pytest.raises(RejectedError) as caught:
        diff_traces(subject, oracle)
    assert str(caught.value) == (
        "a/trace.json: `$.body.neutrality.status`: error[CKE724]: expected captures that changed "
        "no bit, got `rejected`\n"
        "  help: capture fewer edges at a time with `--edges`; the trace holds what was neutral "
        "alone"
    )
