"""`cke verify`: verdicts, exit codes, lifecycle, ledger and report."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from cke.artifacts import attempt as attempt_module
from cke.artifacts.attempt import Attempt
from cke.artifacts.fingerprints import LIS_GREEDY, struct_sha, token_digest
from cke.artifacts.outside import CommandRunner, RecordedRunner, flags
from cke.artifacts.refusal import ArtifactError, refuse_unsupported
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.verdict import EXIT_CODES, Setting, build_report, exit_code, verdict_of
from cke.artifacts.verify import ROLES, Captured, EngineRunner, Findings
from cke.artifacts.writing import write_artifact
from cke.cli import main
from cke.cli.verify import Common, attempt
from cke.cli.verify_packet import forced_rows, forwards_of, keep_packet, xray_command
from cke.errors import Diagnostic
from cke.schemas.reading import decode
from cke.schemas.verification_report import LedgerRecord, VerificationReport
from tests.artifacts.documents import PLAIN, run
from tests.artifacts.generations import FAULT, REQUEST, compared, edited, generation, workflow
from tests.artifacts.test_requests import FORCED

REQUEST_OF_LAYERS = msgspec.structs.replace(PLAIN, checkpoint_step=1)
SETTING = Setting(
    level="demo",
    mode="runtime_differential",
    submode="runtime_regression",
    reference="one",
    candidate="two",
)


def report_of(out):
    (folder,) = out.iterdir()
    raw = (folder / "report.json").read_bytes()
    return folder, decode(raw, VerificationReport, folder / "report.json")


@pytest.mark.contract("LIS-149")
@pytest.mark.parametrize(
    ("scenario", "code", "verdict"), [("pass", 0, "PASS"), ("regression", 4, "REGRESSION")]
)
def test_demo_runs_the_whole_flow_without_a_model(scenario, code, verdict, tmp_path, capsys):
    out = tmp_path / "verify"
    assert main(["verify", "demo", "--scenario", scenario, "--out", str(out)]) == code
    folder, report = report_of(out)
    assert capsys.readouterr().out.startswith(f"{verdict} ")
    assert (report.verdict, report.exit_code) == (verdict, code)
    assert (report.next_action is None) == (verdict == "PASS")
    assert len(json.loads((folder / "report.json").read_text())) == 18
    assert str(tmp_path) not in (folder / "report.json").read_text()
    if verdict == "REGRESSION":
        assert "layer 2, (post_attention_residual, mlp_norm_output]" in report.next_action
        assert "cke xray" in report.next_action
        text = (folder / "report.md").read_text()
        assert "| mlp_norm_output | differs |" in text
        assert "| post_attention_residual | equal |" in text


@pytest.mark.contract("LIS-126", "LIS-139")
def test_text_of_a_report_claims_neither_equality_nor_cause(tmp_path):
    main(["verify", "demo", "--scenario", "regression", "--out", str(tmp_path / "v")])
    folder, report = report_of(tmp_path / "v")
    text = (folder / "report.md").read_text().lower()
    for word in ("root cause", "tensors are identical", "first operation", "caused by"):
        assert word not in text
    assert not any(msgspec.to_builtins(report.nonclaims).values())


@pytest.mark.contract("LIS-149")
def test_folder_and_ledger_are_private_and_the_ledger_has_no_gap(tmp_path):
    main(["verify", "demo", "--out", str(tmp_path / "v"), "--debug-retain"])
    folder, report = report_of(tmp_path / "v")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    ledger = folder / "ledger.jsonl"
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    records = [decode(line, LedgerRecord, ledger) for line in ledger.read_bytes().splitlines()]
    assert [item.sequence for item in records] == list(range(len(records)))
    assert {item.attempt_id for item in records} == {report.attempt_id}
    assert records[-1].status == "PASS"
    assert (folder / "original_pair_reference_report.json").is_file()


@pytest.mark.contract("LIS-149", "LIS-129", "LIS-130")
def test_ledger_and_retained_runs_name_every_stage_in_order(tmp_path):
    options = ["--scenario", "regression", "--out", str(tmp_path / "v"), "--debug-retain"]
    main(["verify", "demo", *options])
    folder, report = report_of(tmp_path / "v")
    pairs = ("original_pair", "reproduction_pair", "recapture_original", "recapture_reproduction")
    one, two, three, four = ([f"{pair}_{role}" for role in ROLES] for pair in pairs)
    assert [item.name for item in report.stages] == [
        "attempt", "runtimes", *one, "pass0", "pass1", *two, "pass2", "pass3a",
        *three, "pass0", "pass1", *four, "pass2", "pass3b", "pass4", "attempt",
    ]  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {
        "ledger.jsonl", "report.json", "report.md",
        *(f"{name}_report.json" for name in (*one, *two, *three, *four)),
        *(f"{name}_layers.json" for name in (*two, *three, *four)),
    }  # fmt: skip


@pytest.mark.contract("LIS-149")
def test_exit_codes_are_those_of_the_format():
    assert EXIT_CODES == {
        "PASS": 0,
        "REGRESSION": 4,
        "INCONCLUSIVE": 3,
        "UNSUPPORTED": 0,
        "HARNESS_ERROR": 2,
    }
    assert exit_code("UNSUPPORTED", True) == 6
    assert exit_code("REGRESSION", True) == 4


def test_verdict_follows_the_tokens_whatever_comes_after():
    found = workflow()[0]
    assert verdict_of(found) == "REGRESSION"
    lost = Findings(found.calibration, found.tokens)
    assert verdict_of(lost) == "REGRESSION"
    for status, verdict in (
        ("unsupported_comparison", "UNSUPPORTED"),
        ("input_token_divergence", "INCONCLUSIVE"),
        ("comparison_blocked_by_pass0", "INCONCLUSIVE"),
    ):
        tokens = msgspec.structs.replace(found.tokens, status=status)
        assert verdict_of(Findings(found.calibration, tokens)) == verdict


def test_verdict_reason_and_action_are_those_of_the_last_result(tmp_path):
    found = workflow()[0]
    results = (found.calibration, found.tokens, found.reproduction, found.layers, found.stages)
    attempt = Attempt(tmp_path)
    where = ("the token mismatch", "the token mismatch", "layer 2, at step 6",
             f"layer 2, {found.stages.interval.notation}, at step 6")  # fmt: skip
    reasons = (found.tokens.status, found.reproduction.status, found.layers.status,
               found.stages.reason)  # fmt: skip
    for count, (place, reason) in enumerate(zip(where, reasons, strict=True), 2):
        for level, how in (
            ("demo", "as `cke xray` does for a model"),
            ("backend", "with the `cke xray` command that was printed"),
        ):
            setting = msgspec.structs.replace(SETTING, level=level)
            report = build_report(attempt, setting, Findings(*results[:count]))
            assert (report.verdict, report.reason) == ("REGRESSION", reason)
            assert report.next_action == f"diagnose {place}, {how}"
    blocked = msgspec.structs.replace(found.stages, interval=None)
    report = build_report(attempt, SETTING, Findings(*results[:4], blocked))
    assert report.next_action.startswith("diagnose layer 2, at step 6, ")
    unsupported = msgspec.structs.replace(found.layers, target_layer=None)
    report = build_report(attempt, SETTING, Findings(*results[:3], unsupported))
    assert report.next_action.startswith("diagnose the token mismatch, ")
    attempt.close()


@pytest.mark.contract("LIS-149")
@pytest.mark.parametrize(
    ("status", "verdict", "action"),
    [
        (None, "HARNESS_ERROR", "read the message, and run the comparison again"),
        ("unsupported_comparison", "UNSUPPORTED",
         "compare a model whose runs the artifacts describe"),
        ("inconclusive", "INCONCLUSIVE",
         "make both runs comparable in what the preflight names, and run again"),
        ("token_equivalent_on_observed_range", "PASS", None),
    ],
)  # fmt: skip
def test_action_follows_a_verdict_that_is_no_regression(status, verdict, action, tmp_path):
    found = workflow()[0]
    tokens = status and msgspec.structs.replace(found.tokens, status=status)
    attempt = Attempt(tmp_path)
    report = build_report(attempt, SETTING, Findings(found.calibration, tokens))
    assert (report.verdict, report.next_action) == (verdict, action)
    assert report.reason == (status or "no run was compared")
    attempt.close()


class Changing(EngineRunner):
    """Runs an engine with the fault; `change` may put another run in the place of each."""

    def __init__(self, change):
        super().__init__(SeededEngine(fault=FAULT))
        self.change = change
        self.count = 0

    def run(self, request):
        self.count += 1
        return self.change(request, super().run(request))


@pytest.mark.contract("LIS-149")
@pytest.mark.parametrize(
    ("failure", "action"),
    [
        (lambda: fail(), "read the message, and run the comparison again"),
        (lambda: refuse_unsupported("the disk is gone"),
         "compare a model whose runs the artifacts describe"),
    ],
)  # fmt: skip
def test_mismatch_stays_a_regression_though_a_later_run_fails(failure, action, tmp_path):
    def change(request, run):
        return failure() if request.checkpoint_step else run

    runners = (EngineRunner(SeededEngine()), Changing(change))
    assert attempt(Common(out=tmp_path / "v"), SETTING, REQUEST, lambda: runners) == 4
    report = report_of(tmp_path / "v")[1]
    assert (report.verdict, report.reason) == ("REGRESSION", "the disk is gone")
    assert report.next_action == action


@pytest.mark.contract("LIS-149", "LIS-130")
def test_mismatch_that_the_fresh_runs_do_not_have_stays_a_regression(tmp_path):
    healthy = EngineRunner(SeededEngine())

    def change(request, run):
        return run if request.intra_layer is None else healthy.run(request)

    runners = (healthy, Changing(change))
    assert attempt(Common(out=tmp_path / "v"), SETTING, REQUEST, lambda: runners) == 4
    report = report_of(tmp_path / "v")[1]
    assert report.token_localization.generated_index == 5
    assert report.layer_localization.target_layer == FAULT.layer
    assert report.intra_layer_localization.status == "comparison_blocked_by_pass3"
    assert report.reason == "pass4.parent_missing"


@pytest.mark.contract("LIS-142", "LIS-141")
@pytest.mark.parametrize(
    ("generate", "change", "kind"),
    [
        (12, ("report.selected_token_ids", slice(5)), "length_mismatch_or_early_termination"),
        (70, ("report.selected_token_ids.66", 1), "token_id_mismatch"),
    ],
)
def test_boundary_that_cannot_be_forced_is_not_rerun(generate, change, kind):
    healthy = EngineRunner(SeededEngine())

    def other(request, _):
        report = healthy.run(request).report
        path, new = change
        ids = list(report.value.report.selected_token_ids)
        return Captured(edited(report, (path, ids[new] if path.endswith("ids") else ids[66] - new)))

    runner = Changing(other)
    request = msgspec.structs.replace(REQUEST, generate=generate)
    found = compared(healthy, runner, request).run()
    assert (found.tokens.mismatch_kind, found.tokens.pass2_disposition) == (kind, "ready")
    assert (found.reproduction.reasons, found.layers) == (("no_independent_rerun",), None)
    assert runner.count == 1


@pytest.mark.contract("LIS-61", "LIS-128")
def test_prefix_of_a_rerun_names_what_it_was_made_from():
    first, second = generation(0), generation(1)
    for found, source in ((first, first.tokens), (second, first.layers)):
        for role in ROLES:
            prefix = found.rerun[role].report.value.forced_prefix
            assert prefix.source_localization_ref_sha256 == struct_sha(source)


class Broken:
    reruns = True

    def __init__(self, action):
        self.action = action

    def run(self, request):
        self.action()


def attempted(tmp_path, action, **common):
    runner = Broken(action)
    options = Common(out=tmp_path / "v", **common)
    return attempt(options, SETTING, PLAIN, lambda: (runner, runner))


def fail():
    raise ArtifactError(Diagnostic(code="CKE861", message="the disk is gone"))


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.contract("LIS-149")
def test_failure_of_a_run_is_a_harness_error(tmp_path, capsys):
    assert attempted(tmp_path, fail) == 2
    _, report = report_of(tmp_path / "v")
    assert (report.verdict, report.reason) == ("HARNESS_ERROR", "the disk is gone")
    assert "lis: artifact error: the disk is gone" in capsys.readouterr().err


@pytest.mark.contract("LIS-149", "LIS-152")
@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 6)])
def test_model_that_cannot_be_described_is_unsupported(strict, code, tmp_path):
    engine = SeededEngine()
    engine.facts = msgspec.structs.replace(engine.facts, kv=None)
    options = Common(out=tmp_path / "v", require_supported=strict)
    setting = msgspec.structs.replace(SETTING, require_supported=strict)
    runner = EngineRunner(engine)
    assert attempt(options, setting, PLAIN, lambda: (runner, runner)) == code
    assert report_of(tmp_path / "v")[1].verdict == "UNSUPPORTED"


@pytest.mark.contract("LIS-149")
def test_signals_end_an_attempt_with_their_codes(tmp_path):
    def terminate():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    assert attempted(tmp_path / "a", terminate) == 143
    assert attempted(tmp_path / "b", interrupt) == 130
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)] == before
    (folder,) = (tmp_path / "a" / "v").iterdir()
    assert [item.name for item in folder.iterdir()] == ["ledger.jsonl"]
    assert "interrupted_by_SIGTERM" in (folder / "ledger.jsonl").read_text()


def test_stage_that_takes_too_long_is_a_harness_error(tmp_path):
    assert attempted(tmp_path, lambda: time.sleep(30), stage_timeout_seconds=1) == 2
    assert report_of(tmp_path / "v")[1].reason == "stage_timeout"


def test_every_stage_has_the_whole_time_and_nothing_runs_on_after(tmp_path, monkeypatch):
    armed, closed = [], []
    close = Attempt.close
    monkeypatch.setattr("cke.cli.verify._arm", armed.append)
    monkeypatch.setattr(Attempt, "close", lambda found: (closed.append(found), close(found)))
    runner = EngineRunner(SeededEngine())
    options = Common(out=tmp_path / "v", stage_timeout_seconds=7)
    assert attempt(options, SETTING, PLAIN, lambda: (runner, runner)) == 0
    stages = report_of(tmp_path / "v")[1].stages
    assert armed == [7] * len(stages[:-1]) + [0]
    assert len(closed) == 1
    assert attempted(tmp_path / "w", interrupt) == 130
    assert len(closed) == 2


def test_ledger_is_closed(tmp_path):
    found = Attempt(tmp_path)
    found.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        found.note("late", "ready")


@pytest.mark.contract("LIS-149")
def test_demo_keeps_no_run_unasked_and_says_what_it_compares(tmp_path):
    for scenario, candidate in (("pass", "seeded"), ("regression", "seeded-with-fault")):
        out = tmp_path / scenario
        main(["verify", "demo", "--scenario", scenario, "--out", str(out)])
        folder, report = report_of(out)
        assert {path.name for path in folder.iterdir()} == {
            "ledger.jsonl", "report.json", "report.md",
        }  # fmt: skip
        assert (report.reference, report.candidate) == ("seeded", candidate)
    main(["verify", "demo", "--out", str(tmp_path / "kept"), "--debug-retain"])
    folder, _ = report_of(tmp_path / "kept")
    kept = json.loads((folder / "original_pair_reference_report.json").read_text())
    assert kept["report"]["prompt_sequences"][0] == {
        "token_count": 3,
        "token_id_digest": msgspec.to_builtins(token_digest((3, 5, 7))),
    }


@pytest.mark.contract("LIS-86")
def test_engine_is_read_as_any_reader_reads_it(monkeypatch):
    checked = []
    monkeypatch.setattr(
        "cke.artifacts.verify.load_layer_trace", lambda document, _: checked.append(document)
    )
    runner = EngineRunner(SeededEngine())
    assert runner.run(PLAIN).layers is None
    captured = runner.run(REQUEST_OF_LAYERS)
    assert checked == [captured.layers]


@pytest.mark.contract("LIS-61", "LIS-130")
def test_prefix_of_the_recapture_is_bound_to_the_layers_and_the_first_one_to_the_tokens():
    comparison = compared(EngineRunner(SeededEngine()), EngineRunner(SeededEngine(fault=FAULT)))
    comparison.run()
    for pair, by_tokens in (("reproduction_pair", True), ("recapture_reproduction", False)):
        for role in ROLES:
            prefix = comparison.kept[f"{pair}_{role}_report.json"]["forced_prefix"]
            source = prefix["source_localization_ref_sha256"]
            assert (source == prefix["source_pass1_artifact_sha256"]) == by_tokens


@pytest.mark.contract("LIS-141")
def test_mismatch_of_builds_that_are_not_alike_is_not_reproduced():
    engine = SeededEngine(fault=FAULT)
    engine.facts = msgspec.structs.replace(engine.facts, precision_path="bf16")
    comparison = compared(EngineRunner(SeededEngine()), EngineRunner(engine))
    found = comparison.run()
    assert found.tokens.pass2_disposition == "blocked_by_strength_limit"
    assert (found.reproduction.status, found.layers) == ("token_localization_not_available", None)
    assert {name.partition("_pair")[0] for name in comparison.kept} == {"original"}


def test_attempt_needs_a_folder_that_it_can_make(tmp_path):
    (tmp_path / "v").write_text("")
    with pytest.raises(ArtifactError, match="`v` cannot hold an attempt"):
        Attempt(tmp_path / "v")


def finished(folder, results):
    """The folder of an attempt with these results."""
    found = Attempt(folder)
    found.finish(build_report(found, SETTING, results))
    found.close()
    return found.folder


@pytest.mark.parametrize(("name", "file"), [("MAX_JSON", "json"), ("MAX_MARKDOWN", "md")])
def test_report_above_its_bound_is_refused(name, file, tmp_path, monkeypatch):
    assert (attempt_module.MAX_JSON, attempt_module.MAX_MARKDOWN) == (1 << 20, 64 << 10)
    results = workflow()[0]
    size = (finished(tmp_path, results) / f"report.{file}").stat().st_size
    monkeypatch.setattr(attempt_module, name, size)
    assert (finished(tmp_path, results) / "report.json").is_file()
    monkeypatch.setattr(attempt_module, name, size - 1)
    with pytest.raises(ArtifactError, match="larger than its bound"):
        finished(tmp_path / "small", results)
    (folder,) = (tmp_path / "small").iterdir()
    assert [path.name for path in folder.iterdir()] == ["ledger.jsonl"]


@pytest.mark.contract("LIS-149")
def test_every_line_of_the_ledger_is_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    found = Attempt(tmp_path)
    found.note("pass0", "comparison_allowed")
    found.close()
    assert len(synced) == 2


@pytest.mark.contract("LIS-149")
def test_recorded_run_is_compared_and_cannot_be_reproduced(tmp_path):
    pairs = generation(0)
    request = msgspec.structs.replace(
        PLAIN,
        generate=12,
        context=pairs.original["reference"].report.value.manifest.runtime.configured_context,
    )
    write_artifact(pairs.original["reference"].report.value, tmp_path / "r.json")
    for fault, code, status in ((None, 0, None), (FAULT, 4, "inconclusive")):
        out = tmp_path / str(code)
        recorded = RecordedRunner(tmp_path / "r.json")
        candidate = EngineRunner(SeededEngine(fault=fault))
        options = Common(out=out)
        assert attempt(options, SETTING, request, lambda: (recorded, candidate)) == code  # noqa: B023
        found = report_of(out)[1].prefix_reproduction
        assert (found and found.status) == status


@pytest.mark.contract("LIS-110")
def test_command_gets_the_flags_of_the_request(tmp_path):
    found = flags(FORCED, tmp_path)
    assert found[:6] == ["--tokens", "3 5 7", "--generate", "1", "--context", "7"]
    assert found[found.index("--forced-prefix") + 1] == "9 10 11"
    assert found[found.index("--layer-checkpoints") + 1] == "4"
    assert "--intra-layer-checkpoints" not in found
    assert (tmp_path / "binding.json").is_file()


@pytest.mark.contract("LIS-110")
def test_command_gets_policy_stops_and_stages_where_they_are_asked_for(tmp_path):
    plain = flags(PLAIN, tmp_path)
    assert plain[-1] == "--ignore-eos"
    assert len(plain) == 9
    assert list(tmp_path.iterdir()) == []
    full = msgspec.structs.replace(
        PLAIN, policy=LIS_GREEDY, stops=(1,), checkpoint_step=2, intra_layer=0
    )
    assert flags(full, tmp_path)[8:] == [
        "--policy", "lis", "--layer-checkpoints", "2",
        "--layer-trace-json", str(tmp_path / "layers.json"), "--intra-layer-checkpoints", "0",
    ]  # fmt: skip


def test_command_that_fails_says_so(tmp_path):
    runner = CommandRunner([sys.executable, "-c", "import sys; sys.exit('no such flag')"], tmp_path)
    with pytest.raises(ArtifactError, match="the command ended with 1: no such flag"):
        runner.run(PLAIN)
    silent = CommandRunner([sys.executable, "-c", ""], tmp_path)
    with pytest.raises(ArtifactError, match="the command ended with 0: no message"):
        silent.run(PLAIN)
    with pytest.raises(ArtifactError, match="`no-such-command` cannot be run"):
        CommandRunner(["no-such-command"], tmp_path).run(PLAIN)


FAKE = """
import pathlib, shutil, sys
source, code, *arguments = sys.argv[1:]
for flag, name in (("--report-json", "r.json"), ("--layer-trace-json", "l.json")):
    if flag in arguments and (pathlib.Path(source) / name).exists():
        shutil.copy(pathlib.Path(source) / name, arguments[arguments.index(flag) + 1])
sys.exit(int(code))
"""


@pytest.mark.contract("LIS-149")
def test_command_is_read_by_what_it_wrote_and_how_it_ended(tmp_path):
    write_artifact(run(REQUEST_OF_LAYERS).report, tmp_path / "r.json")
    write_artifact(run(REQUEST_OF_LAYERS).layers, tmp_path / "l.json")

    def ended(code, request):
        command = [sys.executable, "-c", FAKE, str(tmp_path), str(code)]
        return CommandRunner(command, tmp_path).run(request)

    documents = run(REQUEST_OF_LAYERS).documents()
    for code in (0, 1):
        found = ended(code, REQUEST_OF_LAYERS)
        assert found.report.document == documents["run_report"]
        assert found.layers == documents["layer_trace"]
    assert ended(0, PLAIN).layers is None
    with pytest.raises(ArtifactError, match="the command ended with 2"):
        ended(2, PLAIN)


def test_runtime_needs_one_reference(tmp_path, capsys):
    base = ["verify", "runtime", "--model", "m", "--tokens", "1"]
    assert main(base) == 2
    assert "expected --reference-command or --recorded" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.contract("LIS-149")
def test_backends_and_runtimes_of_a_model_are_compared(tiny_model, tmp_path, repository):
    folder = tiny_model("llama")
    base = ["--model", str(folder), "--tokens", "5 6 7", "-n", "4"]
    assert main(["verify", "backend", *base, "--out", str(tmp_path / "a")]) == 0
    command = f"{sys.executable} -m cke run"
    environment = ["--reference-command", command, "--out", str(tmp_path / "b")]
    assert main(["verify", "runtime", *base, *environment]) == 0
    limited = ["--candidate-dtype", "bfloat16", "--out", str(tmp_path / "c")]
    assert main(["verify", "backend", *base, *limited]) in (0, 4)
    assert report_of(tmp_path / "c")[1].submode == "precision_policy_comparison"


@pytest.mark.slow
@pytest.mark.contract("LIS-137", "LIS-138", "LIS-149", "LIS-131")
def test_planted_attribute_of_a_model_is_found_in_its_stage(
    tiny_model, tmp_path, repository, capsys
):
    source = repository / "circuits" / "blocks"
    text = (source / "decoder.circuit").read_text()
    assert "residual_scale: float = 1\n" in text
    planted = tmp_path / "blocks"
    planted.mkdir()
    (planted / "decoder.circuit").write_text(
        text.replace("residual_scale: float = 1\n", "residual_scale: float = 0.5\n")
    )
    (planted / "config.circuit").write_text((source / "config.circuit").read_text())
    circuit = tmp_path / "llama.circuit"
    circuit.write_text((repository / "circuits" / "llama.circuit").read_text())
    base = ["--model", str(tiny_model("llama")), "--tokens", "5 6 7", "-n", "5"]
    out = ["--candidate-circuit", str(circuit), "--out", str(tmp_path / "v")]
    assert main(["verify", "backend", *base, *out]) == 4
    found = report_of(tmp_path / "v")[1]
    assert found.layer_localization.target_layer == 0
    interval = found.intra_layer_localization.interval
    assert interval.notation == "(attention_output_projection, post_attention_residual]"
    following = capsys.readouterr().out.splitlines()[-1]
    assert following.startswith("next: cke xray --model ")
    assert main(shlex.split(following)[2:]) == 1
    shown = capsys.readouterr().out
    assert "layer.0.edge/x/scale is the first edge that differs from cke." in shown
    assert "`by` 1.0 in place of 0.5" in shown


@pytest.mark.contract("LIS-137")
def test_packet_of_a_regression_ends_at_the_mismatch():
    found = workflow()[0]
    prefix = found.tokens.prefix.token_ids
    assert forced_rows((3, 5, 7), found) == ("3 5", "; ".join(map(str, (7, *prefix))))
    assert forced_rows((3,), found) == ("3", "; ".join(map(str, prefix)))
    assert forced_rows((3,), Findings()) == ("3", "")
    words = xray_command(Path("m.gguf"), "c.circuit", "bfloat16", "llamacpp", Path("a"))
    assert shlex.join(words) == (
        "cke xray --model m.gguf --oracle llamacpp --circuit c.circuit --dtype bfloat16 "
        "--out a/xray"
    )
    plain = xray_command(Path("m"), None, "float32", "pytorch", Path("a"))
    assert shlex.join(plain) == "cke xray --model m --oracle pytorch --out a/xray"


@pytest.mark.contract("LIS-137")
def test_packet_is_the_trace_of_the_forwards_that_reach_the_mismatch(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr("cke.api.evidence.subject_trace", lambda *given: kept.append(given))
    found = workflow()[0]
    prefix = found.tokens.prefix.token_ids
    keep_packet(SimpleNamespace(model="m"), (3, 5, 7), found, tmp_path)
    ((model, request, out),) = kept
    assert (model, out) == ("m", tmp_path)
    assert request.tokens == ((3, 5),)
    assert request.forced == tuple((token,) for token in (7, *prefix))
    same = msgspec.structs.replace(found.tokens, prefix=None)
    assert forwards_of((3, 5), Findings(found.calibration, same)) == ((3,), (5,))


@pytest.mark.contract("LIS-137")
def test_command_that_goes_on_is_printed_for_a_regression_alone(tmp_path, capsys):
    for fault, code, lines in ((None, 0, 2), (FAULT, 4, 3)):
        runners = (EngineRunner(SeededEngine()), EngineRunner(SeededEngine(fault=fault)))
        request = msgspec.structs.replace(PLAIN, generate=12)
        options = Common(out=tmp_path / str(code))
        setting = msgspec.structs.replace(SETTING, level="backend")

        def command(folder, findings):
            return ["cke", "xray", str(findings.layers.target_layer), folder.name]

        assert attempt(options, setting, request, lambda: runners, command) == code  # noqa: B023
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == lines
        folder, report = report_of(options.out)
        if fault is not None:
            assert shown[-1] == f"next: cke xray 2 {folder.name}"
            assert report.next_action == (
                "diagnose layer 2, (post_attention_residual, mlp_norm_output], at step 6, "
                "with the `cke xray` command that was printed"
            )


def test_verify_help_lists_the_levels():
    done = subprocess.run(
        [sys.executable, "-m", "cke", "verify", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert all(level in done.stdout for level in ("demo", "backend", "runtime"))
