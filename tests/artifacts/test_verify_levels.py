"""`cke verify backend` and `runtime` without a model: what they compare, keep and print."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import LIS_GREEDY
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.verify import EngineRunner
from cke.artifacts.writing import write_artifact
from cke.cli import main
from tests.artifacts.generations import FAULT, REQUEST, edited
from tests.artifacts.test_verify import report_of

replace = msgspec.structs.replace
PLANTED = "planted.circuit"
FAMILY = "gemma2_decoder"


@pytest.fixture
def asked(monkeypatch):
    """What models were asked for; seeded engines stand in their place, by the circuit."""
    found = []

    def engine(model, circuit, dtype, driver):
        found.append((model, circuit, dtype, driver))
        if circuit == FAMILY:
            return SeededEngine(family=FAMILY)
        return SeededEngine(fault=FAULT if circuit == PLANTED else None)

    monkeypatch.setattr("cke.cli.verify._engine", engine)
    return found


def verify(level, out, *options, model="m", tokens="3 5 7"):
    count = {"backend": "--generate", "runtime": "-n"}[level]
    base = ["--model", model, "--tokens", tokens, count, "12", "--out", str(out)]
    return main(["verify", level, *base, *options])


def setting_of(report):
    return (report.level, report.mode, report.submode, report.reference, report.candidate)


@pytest.mark.contract("LIS-149")
def test_two_builds_of_a_model_are_named_and_compared(asked, tmp_path, capsys):
    assert verify("backend", tmp_path / "a", "--verbose") == 0
    assert asked == [(Path("m"), None, "float32", "per_layer")] * 2
    same = "float32:per_layer:found"
    report = report_of(tmp_path / "a")[1]
    submode = "runtime_regression"
    assert setting_of(report) == ("backend", "backend_differential", submode, same, same)
    assert "lis-verify: pass0 comparison_allowed" in capsys.readouterr().err
    asked.clear()
    options = ["--candidate-dtype", "bfloat16", "--candidate-driver", "whole_step"]
    reference = ["--reference-circuit", "a/b.circuit", "--reference-driver", "eager"]
    assert verify("backend", tmp_path / "b", *options, *reference) == 0
    assert asked == [
        (Path("m"), "a/b.circuit", "float32", "eager"),
        (Path("m"), None, "bfloat16", "whole_step"),
    ]
    report = report_of(tmp_path / "b")[1]
    names = ("float32:eager:b", "bfloat16:whole_step:found")
    submode = "precision_policy_comparison"
    assert setting_of(report) == ("backend", "backend_differential", submode, *names)
    assert "lis-verify:" not in capsys.readouterr().err


@pytest.mark.contract("LIS-137", "LIS-149")
def test_regression_of_a_build_goes_on_from_a_trace_of_the_reference(
    asked, tmp_path, monkeypatch, capsys
):
    kept = []
    monkeypatch.setattr("cke.cli.verify.keep_packet", lambda *given: kept.append(given))
    assert verify("backend", tmp_path, "--candidate-circuit", PLANTED) == 4
    folder, report = report_of(tmp_path)
    trace = folder / "reference_trace"
    ((engine, prompt, findings, out),) = kept
    assert (engine.fault, prompt, out) == (None, REQUEST.tokens, trace)
    assert findings.layers.target_layer == FAULT.layer
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == [
        "next:", "cke", "xray", "--model", "m", "--oracle", str(trace), "--circuit", PLANTED,
        "--out", str(folder / "xray"),
    ]  # fmt: skip
    assert "xray_packet" in [item.name for item in report.stages]


def recorded(tmp_path, request=REQUEST, *changes):
    report = EngineRunner(SeededEngine()).run(request).report
    write_artifact(edited(report, *changes).value, tmp_path / "r.json")
    return ["--recorded", str(tmp_path / "r.json")]


@pytest.mark.contract("LIS-137", "LIS-149")
@pytest.mark.parametrize(("name", "oracle"), [("m.gguf", "llamacpp"), ("m", "pytorch")])
def test_regression_of_a_runtime_goes_on_from_a_live_oracle(name, oracle, asked, tmp_path, capsys):
    reference = recorded(tmp_path)
    assert verify("runtime", tmp_path / "same", *reference, model=name) == 0
    report = report_of(tmp_path / "same")[1]
    names = ("recorded", "float32:found")
    assert setting_of(report) == ("runtime", "runtime_differential", "runtime_regression", *names)
    out = tmp_path / "other"
    assert verify("runtime", out, *reference, "--circuit", PLANTED, model=name) == 4
    folder, report = report_of(out)
    fed = (7, *report.token_localization.prefix.token_ids)
    assert shlex.split(capsys.readouterr().out.splitlines()[-1]) == [
        "next:", "cke", "xray", "--model", name, "--oracle", oracle, "--circuit", PLANTED,
        "--out", str(folder / "xray"), "--tokens", "3 5", "--steps", "; ".join(map(str, fed)),
    ]  # fmt: skip


@pytest.mark.contract("LIS-137")
def test_mismatch_after_a_prompt_of_one_token_needs_no_steps(asked, tmp_path, capsys):
    request = replace(REQUEST, tokens=(3,))
    first = execute(SeededEngine(), request).report.report.selected_token_ids[0]
    reference = recorded(tmp_path, request, ("report.selected_token_ids.0", (first + 1) % 60))
    assert verify("runtime", tmp_path / "v", *reference, tokens="3") == 4
    following = capsys.readouterr().out.splitlines()[-1]
    assert following.endswith(" --tokens 3")


@pytest.mark.contract("LIS-160", "LIS-141")
def test_policy_and_context_are_those_that_were_asked_for(asked, tmp_path):
    reference = recorded(tmp_path, replace(REQUEST, policy=LIS_GREEDY))
    for out, code, options in (
        ("lis", 0, ["--policy", "lis", "--context", "40", "--debug-retain"]),
        ("raw", 3, ["--policy", "raw"]),
        ("default", 3, []),
    ):
        assert verify("runtime", tmp_path / out, *reference, *options) == code
    folder, _ = report_of(tmp_path / "lis")
    for policy in ("raw", "lis"):
        assert verify("backend", tmp_path / f"both-{policy}", "--policy", policy) == 0
    kept = json.loads((folder / "original_pair_candidate_report.json").read_text())
    assert kept["manifest"]["runtime"]["configured_context"] == 40


@pytest.mark.contract("LIS-149")
def test_second_runtime_is_the_command(asked, tmp_path, monkeypatch, capsys):
    given = []

    def runner(command, model):
        given.append((command, model))
        return EngineRunner(SeededEngine())

    monkeypatch.setattr("cke.artifacts.outside.CommandRunner", runner)
    command = ["--reference-command", "env A='b c' cke run"]
    assert verify("runtime", tmp_path / "v", *command) == 0
    assert given == [(["env", "A=b c", "cke", "run"], Path("m"))]
    assert report_of(tmp_path / "v")[1].reference == "command"
    assert verify("runtime", tmp_path / "w", *command, "--recorded", "r.json") == 2
    assert "and not both" in capsys.readouterr().err


@pytest.mark.contract("LIS-149", "LIS-161")
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--require-supported"], 6)])
def test_family_whose_tokens_are_not_compared_is_unsupported(options, code, asked, tmp_path):
    circuits = ["--reference-circuit", FAMILY, "--candidate-circuit", FAMILY]
    assert verify("backend", tmp_path, *circuits, *options) == code
    report = report_of(tmp_path)[1]
    assert (report.verdict, report.reason) == ("UNSUPPORTED", "unsupported_comparison")
