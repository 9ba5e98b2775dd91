"""`cke xray`: flags, exit codes, files, and the command that reproduces."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest

import cke
from cke.api.diagnosis import read_second
from cke.api.report_files import write_report
from cke.cli import main
from cke.cli.xray import command_of, exit_code
from cke.errors import CkeError
from cke.schemas.diagnosis import Diagnosis
from tests.models import TinyModel
from tests.xray import reports
from tests.xray.faults import FAULTS, edited


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (reports.clean(), 0),
        (reports.finding(), 1),
        (reports.stopped(), 1),
        (reports.open_question(), 4),
        (msgspec.structs.replace(reports.clean(), status="rejected"), 4),
        (msgspec.structs.replace(reports.clean(), verdict="cosmetic_drift"), 1),
        (msgspec.structs.replace(reports.clean(), verdict="behavioral_divergence"), 1),
    ],
)
def test_exit_code_follows_status_and_verdict(report: Diagnosis, code: int) -> None:
    assert exit_code(report) == code


def test_files_are_written_and_stale_ones_removed(tmp_path: Path) -> None:
    write_report(reports.finding(), tmp_path, 1.5)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("report.json", "report.md", "drift.svg", "fix.patch", "run.json")
    }
    assert tmp_path.joinpath("fix.patch").read_text() == reports.PATCH
    assert json.loads(tmp_path.joinpath("run.json").read_text())["seconds"] == 1.5
    write_report(reports.stopped(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md", "run.json"}


@pytest.mark.contract("XRAY-25")
@pytest.mark.contract("XRAY-35")
def test_a_report_is_read_back_and_cited_by_its_digest(tmp_path: Path) -> None:
    write_report(reports.finding(), tmp_path)
    read, digest = read_second(tmp_path / "report.json")
    assert read == reports.finding()
    assert digest == json.loads(tmp_path.joinpath("report.json").read_text())["body_sha256"]
    text = tmp_path.joinpath("report.json").read_text().replace("10000.0", "10001.0")
    tmp_path.joinpath("report.json").write_text(text)
    with pytest.raises(CkeError, match=r"CKE730\]: expected an unedited report"):
        read_second(tmp_path / "report.json")


def test_reports_of_equal_runs_have_equal_bytes(tmp_path: Path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        write_report(reports.finding(), tmp_path / name, seconds)
    for name in ("report.json", "report.md", "drift.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("xray", "error[CKE901]: expected `--model` and `--oracle` and `--out`, got none"),
        (
            "xray --model m --oracle pytorch --out o --tokens 1 --prompt x",
            "error[CKE901]: expected one of `--tokens`, `--prompt` and `--pixels`, got 2",
        ),
        ("xray --model m --oracle pytorch --out o --steps x", "`--tokens` expects IDs"),
        ("xray --model m --oracle pytorch --out o --format xml", "error[CKE906]"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_loads(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_second_report_that_is_not_there_is_missing_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"xray --model m --oracle pytorch --out o --second-report {tmp_path / 'none.json'}"
    assert main(words.split()) == 3
    assert "error[CKE731]: expected the report.json of an earlier run, got no file" in (
        capsys.readouterr().err
    )


def test_a_model_that_is_not_there_is_missing_input(tmp_path: Path) -> None:
    assert main(["xray", "--model", str(tmp_path / "m"), "--oracle", "pytorch", "--out", "o"]) == 3


def test_reproducing_command_quotes_and_leaves_out_defaults() -> None:
    given = {
        "model": Path("a b"),
        "circuit": None,
        "oracle": "pytorch",
        "oracle_model": None,
        "second_report": None,
        "tokens": "",
        "prompt": "it's",
        "steps": "5;9",
        "segments": "",
        "dtype": "float32",
        "out": Path("o"),
    }
    command = command_of(given)
    assert shlex.split(command)[2:] == [
        *("--model", "a b", "--oracle", "pytorch", "--prompt", "it's", "--steps", "5;9"),
        *("--out", "o"),
    ]
    assert "--dtype bfloat16" in command_of({**given, "dtype": "bfloat16"})


def test_package_is_the_function() -> None:
    assert callable(cke.xray)
    with pytest.raises(TypeError, match="oracle"):
        cke.xray("model")


@pytest.mark.oracle_torch
@pytest.mark.slow
def test_a_wrong_constant_from_command_to_files(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circuit = edited(FAULTS["norm-epsilon"], tmp_path / "circuits")
    words = ["xray", "--model", str(tiny_model("llama")), "--circuit", str(circuit)]
    words += ["--oracle", "pytorch", "--out", str(tmp_path / "out"), "--format", "github"]
    assert main(words) == 1
    captured = capsys.readouterr()
    file = f"{tmp_path}/circuits/blocks/decoder.circuit"
    assert captured.out.startswith(f"::error file={file},line=70,col=7,title=X-Ray ")
    assert "round 1: sparse" in captured.err
    report, _ = read_second(tmp_path / "out" / "report.json")
    assert report.first_divergence is not None
    assert report.first_divergence.checkpoint_id == "layer.0.attention_norm_output"
    assert report.reproduce == shlex.join(["cke", *words[:-2]])
    patch = tmp_path.joinpath("out", "fix.patch").read_text()
    assert patch.startswith("--- a/blocks/decoder.circuit\n")
    assert "+    attn_norm: rms_norm[D](eps: 1e-6) " in patch
