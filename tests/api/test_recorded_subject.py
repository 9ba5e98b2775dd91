"""A recorded trace as the subject: alone, and with the model that was traced."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cke.api
from cke.api.diagnosis import xray
from cke.api.evidence import subject_trace
from cke.api.recorded_subject import RecordedSubject, xray_trace
from cke.cli import main
from cke.errors import CkeError, MissingInputError, RejectedError
from cke.runtime.records import digest, summarise
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_writer import body_sha256
from cke.schemas.trace import Body
from tests.models import TinyModel
from tests.xray.faults import FAULTS, edited

EDGE = "layer.0.attention.rope_query_output"
NORM = "layer.0.attention_norm_output"
Change = Callable[[dict[str, Any]], None]


def _rewritten(folder: Path, change: Change) -> Path:
    """Change the document and hash it anew, as another producer would have written it."""
    path = folder / "trace.json"
    document = json.loads(path.read_text())
    change(document["body"])
    document["body_sha256"] = body_sha256(msgspec.convert(document["body"], Body))
    path.write_text(json.dumps(document))
    return folder


def _as_oracle(body: dict[str, Any]) -> None:
    body["side"] = "oracle"
    body["producer"] |= {"name": "pytorch", "facts": {}}
    body["identity"] |= {"manifest_sha256": None, "circuit": None}
    body["neutrality"]["status"] = "neutral"


@pytest.fixture
def subject(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository / "tests/fixtures/trace_addformer", tmp_path / "mine"))


@pytest.fixture
def oracle(subject: Path, tmp_path: Path) -> Path:
    return _rewritten(Path(shutil.copytree(subject, tmp_path / "theirs")), _as_oracle)


def _scaled(folder: Path, checkpoint: str) -> None:
    """Make one tensor of the trace one percent more, with a digest of its own."""
    tensors = load_file(folder / "tensors.safetensors")

    def change(body: dict[str, Any]) -> None:
        for record in body["records"]:
            if record["checkpoint_id"] != checkpoint:
                continue
            key = record["tensor_path"].split("#")[1]
            tensors[key] = (tensors[key] * np.float32(1.01)).astype(np.float32)
            record["sha256"] = digest(tensors[key])
            record["summary"] = msgspec.to_builtins(summarise(tensors[key]))

    _rewritten(folder, change)
    save_file(tensors, folder / "tensors.safetensors")


def test_equal_traces_pass_without_a_model(subject: Path, oracle: Path, tmp_path: Path) -> None:
    report = xray_trace(subject, oracle=oracle, out=tmp_path / "out")
    assert (report.status, report.verdict) == ("complete", "pass_within_gate")
    assert report.first_divergence is None
    states = {stage.name: stage.state for stage in report.stages}
    assert states.pop("weights") == "not_available"
    assert set(states.values()) == {"passed"}
    assert report.coverage.edges_compared == report.coverage.edges_total


def test_a_difference_is_placed_and_its_cause_is_a_question(
    subject: Path, oracle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _scaled(oracle, EDGE)
    out = tmp_path / "out"
    words = ["xray", "--subject", str(subject), "--oracle", str(oracle), "--out", str(out)]
    assert main(words) == 4
    shown = capsys.readouterr().out
    assert EDGE in shown
    assert f"--subject {subject} --oracle {oracle} --out {out} --model MODEL" in " ".join(
        shown.replace("\\", " ").split()
    )
    document = json.loads((out / "report.json").read_text())["body"]
    found = document["first_divergence"]
    assert (found["checkpoint_id"], found["failure_class"]) == (EDGE, None)
    assert found["fix_owner"] is None
    assert found["last_passing_checkpoint"] is not None


def _told_by_a_second(
    subject: Path, oracle: Path, second: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    """Return the report of a trace after that of a second oracle, and what the screen says."""
    out = subject.parent / "out"
    words = ["xray", "--subject", str(subject), "--oracle"]
    main([*words, str(second), "--out", str(out / "second")])
    report = out / "second" / "report.json"
    capsys.readouterr()
    assert main([*words, str(oracle), "--out", str(out), "--second-report", str(report)]) == 4
    body = json.loads((out / "report.json").read_text())["body"]
    digest = json.loads(report.read_text())["body_sha256"]
    assert body["second_report"]["sha256"] == digest
    assert body["first_divergence"]["fix_owner"] is None
    return body, capsys.readouterr().out


@pytest.mark.contract("XRAY-35")
@pytest.mark.parametrize(
    ("faults", "said", "asked"),
    [
        ((), "sides with the subject", "whether pytorch is wrong there: "),
        (
            (EDGE,),
            "differs from the subject too",
            "what op of the subject makes the difference, as ",
        ),
        ((NORM, EDGE), f"diverges at {NORM} first", "what op makes the difference: "),
    ],
)
def test_a_second_report_counts_without_a_model(
    faults: tuple[str, ...],
    said: str,
    asked: str,
    subject: Path,
    oracle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def renamed(body: dict[str, Any]) -> None:
        body["producer"] |= {"name": "llamacpp"}

    second = _rewritten(Path(shutil.copytree(oracle, tmp_path / "second")), renamed)
    _scaled(oracle, EDGE)
    for place in faults:
        _scaled(second, place)
    body, shown = _told_by_a_second(subject, oracle, second, capsys)
    assert body["first_divergence"]["because"][-1] == f"the second oracle (llamacpp) {said}"
    assert body["next_probe"]["question"].startswith(asked)
    assert "llamacpp says " in shown


def test_a_second_report_of_the_same_oracle_is_left_aside(
    subject: Path, oracle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _scaled(oracle, EDGE)
    body, _ = _told_by_a_second(subject, oracle, oracle, capsys)
    assert body["first_divergence"]["because"][-1] == (
        "the second report was left aside: it is of the same oracle, pytorch"
    )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--steps 3", "expected `--subject` or `--steps`, got both"),
        ("--model m --tokens 3", "expected `--subject` or `--tokens`, got both"),
        ("--persistent", "expected `--model` with `--persistent`, got `--subject` alone"),
        ("--dtype bfloat16", "expected `--model` with `--dtype`, got `--subject` alone"),
    ],
)
def test_a_flag_that_a_recorded_subject_leaves_unheard_is_refused(
    flag: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["xray", "--subject", "s", "--oracle", "o", "--out", "o", *flag.split()]) == 2
    assert f"error[CKE901]: {message}" in capsys.readouterr().err


def test_an_earlier_report_of_two_traces_says_what_moved(
    subject: Path, oracle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(oracle, tmp_path / "good")
    _scaled(oracle, EDGE)
    words = ["xray", "--subject", str(subject), "--oracle", str(oracle), "--out"]
    main([*words, str(tmp_path / "first")])
    shutil.rmtree(oracle)
    (tmp_path / "good").rename(oracle)
    again = [*words, str(tmp_path / "again"), "--since", str(tmp_path / "first" / "report.json")]
    assert main(again) == 0
    assert f"gone: {EDGE} in forward 0 was the first divergent edge" in " ".join(
        capsys.readouterr().out.split()
    )


def test_other_tokens_stop_before_numbers(subject: Path, oracle: Path, tmp_path: Path) -> None:
    def change(body: dict[str, Any]) -> None:
        body["segments"][0]["tokens"][0][0] += 1

    report = xray_trace(subject, oracle=_rewritten(oracle, change), out=tmp_path / "out")
    assert report.first_divergence is not None
    assert report.first_divergence.failure_class == "INPUT_TOKEN_MISMATCH"
    assert (report.status, report.verdict, report.points) == ("stopped", None, ())


def test_a_dtype_of_the_oracle_that_is_another_stops_before_numbers(
    subject: Path, oracle: Path, tmp_path: Path
) -> None:
    _rewritten(oracle, lambda body: body["producer"].update(dtype="bf16"))
    report = xray_trace(subject, oracle=oracle, out=tmp_path / "out")
    assert report.first_divergence is not None
    assert report.first_divergence.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"


def _cut(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _edited(folder: Path) -> None:
    path = folder / "trace.json"
    path.write_text(path.read_text().replace('"threads":', '"threads" :').replace("fp32", "fp16"))


def _value_edited(folder: Path) -> None:
    tensors = load_file(folder / "tensors.safetensors")
    key = next(name for name in tensors if EDGE in name)
    tensors[key] = tensors[key] + np.float32(1)
    save_file(tensors, folder / "tensors.safetensors")


@pytest.mark.parametrize("damage", [_cut, _edited, _value_edited])
def test_a_damaged_trace_is_refused(
    damage: Callable[[Path], None], subject: Path, oracle: Path, tmp_path: Path
) -> None:
    damage(subject)
    with pytest.raises(RejectedError):
        xray_trace(subject, oracle=oracle, out=tmp_path / "out")
    assert not (tmp_path / "out" / "report.json").exists()


def test_half_a_trace_is_none(subject: Path, oracle: Path, tmp_path: Path) -> None:
    (subject / "trace.json").unlink()
    with pytest.raises(MissingInputError, match="CKE703"):
        xray_trace(subject, oracle=oracle, out=tmp_path / "out")


def test_a_live_oracle_needs_what_it_loads(subject: Path, tmp_path: Path) -> None:
    with pytest.raises(CkeError, match="and with a live one what it loads: `--oracle-model`"):
        xray_trace(subject, oracle="pytorch", out=tmp_path / "out")


@pytest.mark.oracle_torch
def test_a_trace_of_an_oracle_or_of_other_weights_is_refused(
    subject: Path, oracle: Path, tiny_model: TinyModel, tmp_path: Path
) -> None:
    with pytest.raises(RejectedError) as caught:
        xray_trace(oracle, oracle=subject, out=tmp_path / "out")
    assert (
        "`$.body.side`: error[CKE734]: expected the trace of a subject, got that of an oracle"
        in (str(caught.value))
    )
    model = cke.api.load(tiny_model("llama"))
    with pytest.raises(RejectedError) as caught:
        RecordedSubject(model, subject)
    assert "`$.body.identity.model_sha256`: error[CKE734]: expected the trace of this model" in (
        str(caught.value)
    )


@pytest.mark.slow
@pytest.mark.oracle_torch
def test_with_its_model_a_recorded_fault_is_named_and_confirmed(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder, fault = tiny_model("llama"), FAULTS["norm-epsilon"]
    circuit = edited(fault, tmp_path / "circuits")
    request = CaptureRequest(tokens=((7, 3, 11, 5, 2, 9),), forced=((4,),))
    model = cke.api.load(folder, circuit)
    subject_trace(model, request, tmp_path / "mine")
    report = xray(
        model, oracle="pytorch", circuit=circuit, out=tmp_path / "out", recorded=tmp_path / "mine"
    )
    found = report.first_divergence
    assert found is not None
    assert (found.checkpoint_id, found.failure_class) == (fault.checkpoint_id, fault.failure_class)
    assert found.confirmed_by is not None
    assert found.confirmed_by.what == "eps"
