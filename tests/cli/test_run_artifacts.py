"""The artifact flags of `cke run`, on tiny models."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from cke.artifacts.check_trace import check_decode_trace
from cke.artifacts.engine import RunRequest
from cke.artifacts.fingerprints import LIS_GREEDY, Hasher
from cke.artifacts.markdown import render_markdown
from cke.artifacts.reading import read_decode_trace, read_layer_trace, read_run_report
from cke.artifacts.refusal import ArtifactError, UsageError
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.writing import encode
from cke.cli import main
from cke.cli.run_artifacts import (
    ArtifactOptions,
    check_options,
    parse_prefix,
    run_request,
    run_with_artifacts,
    write_artifacts,
)
from cke.cli.token_writer import Request
from tests.artifacts.documents import PLAIN, run
from tests.artifacts.test_requests import binding

TOKENS = ["--tokens", "5 6 7", "--generate", "4", "--ignore-eos"]
PREFIXES = (
    "lis: perf-stage ",
    "lis: perf-summary ",
    "lis: perf-per-token ",
    "lis: generation-diagnostic ",
    "lis: generation-diagnostic-candidate ",
    "lis: generation-diagnostic-reasoning ",
    "lis: layer-checkpoint ",
    "lis: simd backend=",
    "lis: precision path=",
    "lis: kv-cache: ",
)


def arguments(folder, *options):
    return ["run", "--model", str(folder), *TOKENS, *options]


REFUSED = [
    (["--layer-trace-json", "l.json"], "--layer-trace-json requires --layer-checkpoints"),
    (["--intra-layer-checkpoints", "1"], "--intra-layer-checkpoints requires --layer-checkpoints"),
    (
        ["--intra-layer-checkpoints", "1", "--layer-checkpoints", "2"],
        "--intra-layer-checkpoints requires --layer-trace-json",
    ),
    (
        ["--report-json", "r.json", "--forced-prefix", "1 2"],
        "--report-json with --forced-prefix requires --forced-prefix-binding-json",
    ),
    (
        ["--forced-prefix", "1 2"],
        "--forced-prefix requires --diagnostics or --forced-prefix-binding-json",
    ),
    (
        ["--forced-prefix-binding-json", "b.json", "--report-json", "r.json"],
        "--forced-prefix-binding-json requires --forced-prefix",
    ),
    (
        ["--forced-prefix-binding-json", "b.json", "--forced-prefix", "1"],
        "--forced-prefix-binding-json requires --report-json",
    ),
    (
        ["--report-json", "r.json", "--temperature", "1"],
        "artifacts describe greedy selection: expected --temperature 0",
    ),
    (
        ["--report-json", "r.json", "--format", "json"],
        "artifact flags expect neither --format nor --output",
    ),
    (
        ["--report-json", "r.json", "--output", "o"],
        "artifact flags expect neither --format nor --output",
    ),
    (
        ["--report-json", "r.json", "--trace-json", "r.json"],
        "each artifact expects a path of its own",
    ),
    (
        ["--report-json", "r.json", "--layer-trace-json", "r.json", "--layer-checkpoints", "1"],
        "each artifact expects a path of its own",
    ),
]


ACCEPTED = [
    {"layer_trace_json": "l", "layer_checkpoints": 2},
    {"layer_trace_json": "l", "layer_checkpoints": 2, "intra_layer_checkpoints": 1},
    {"forced_prefix": "1", "forced_prefix_binding_json": "b", "report_json": "r"},
    {"forced_prefix": "1", "diagnostics": True},
    {"report_json": "r", "report_md": "m", "trace_json": "t"},
]


@pytest.mark.contract("LIS-57", "LIS-58", "LIS-87", "LIS-110")
@pytest.mark.parametrize("flags", ACCEPTED)
def test_combination_that_can_be_served_is_not_refused(flags, tmp_path):
    given = {
        name: tmp_path / value if name.endswith(("json", "md")) else value
        for name, value in flags.items()
    }
    check_options(ArtifactOptions(**given), 0, "human", None)


@pytest.mark.contract("LIS-57", "LIS-58", "LIS-87", "LIS-110")
@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_combination_is_refused_before_a_model_is_looked_for(
    options, text, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments("no-model", *options)) == 2
    assert capsys.readouterr().err == f"lis: artifact error: {text}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("LIS-56", "LIS-81", "LIS-103")
@pytest.mark.parametrize("flag", ["--report-json", "--report-md", "--trace-json"])
@pytest.mark.parametrize(
    ("target", "text"),
    [(".", "`{name}` cannot be written: it is a folder"), ("no/a.json", "its folder is not there")],
)
def test_target_that_cannot_be_written_ends_in_1(flag, target, text, tmp_path, capsys):
    assert main(arguments("no-model", flag, str(tmp_path / target))) == 1
    said = capsys.readouterr().err
    assert said.startswith("lis: artifact error: ")
    assert text.format(name=tmp_path.name) in said


@pytest.mark.contract("LIS-111")
@pytest.mark.parametrize("step", ["x", "1x"])
def test_step_that_is_no_integer_is_a_usage_error(step):
    assert main(arguments("no-model", "--layer-checkpoints", step)) == 2


@pytest.mark.contract("LIS-160")
@pytest.mark.parametrize(
    ("policy", "code", "said"), [("raw", 3, "no-model"), ("lis", 3, "no-model"), ("x", 2, '"x"')]
)
def test_policies_have_two_names(policy, code, said, tmp_path, capsys):
    report = str(tmp_path / "r.json")
    assert main(arguments("no-model", "--report-json", report, "--policy", policy)) == code
    assert said in capsys.readouterr().err


@pytest.mark.contract("LIS-58")
def test_forced_prefix_is_a_bounded_list_of_token_ids():
    assert parse_prefix(None) == ()
    assert parse_prefix(" 5 6  7") == (5, 6, 7)
    assert len(parse_prefix("1 " * 2048)) == 2048
    for text in ("", " ", "x", "-1", "5 1.0", "1 " * 2048 + "1"):
        with pytest.raises(UsageError, match='expects token ids such as "5 6 7"'):
            parse_prefix(text)


@pytest.mark.contract("LIS-58", "LIS-60", "LIS-160")
def test_request_is_that_of_the_flags(tmp_path):
    asked = Request(tokens=[3, 5, 7], prompt=None, new_tokens=8, stops=(2,))
    plain = run_request(ArtifactOptions(), asked)
    assert plain == msgspec.structs.replace(PLAIN, stops=(2,))
    path = tmp_path / "binding.json"
    path.write_bytes(msgspec.json.encode(binding()))
    options = ArtifactOptions(
        policy="lis", context=40, batch=2, diagnostics=True, perf_per_token=True, perf_tag="a",
        forced_prefix="9 10 11", forced_prefix_binding_json=path, layer_checkpoints=2,
        intra_layer_checkpoints=1,
    )  # fmt: skip
    text = Request(tokens=[3, 5, 7], prompt="hello", new_tokens=1, stops=())
    assert run_request(options, text) == RunRequest(
        tokens=(3, 5, 7), generate=1, policy=LIS_GREEDY, context=40, batch=2, forced=(9, 10, 11),
        binding=binding(), checkpoint_step=2, intra_layer=1, diagnostics=True, perf=True,
        perf_per_token=True, perf_tag="a", text=True,
    )  # fmt: skip
    assert run_request(ArtifactOptions(perf=True), asked).perf_per_token is False
    assert run_request(ArtifactOptions(perf=True), asked).perf is True


@pytest.mark.contract("LIS-40", "LIS-85", "LIS-83")
def test_each_artifact_is_written_where_it_was_asked_for_and_no_other(tmp_path):
    alone = tmp_path / "alone.json"
    write_artifacts(ArtifactOptions(report_json=alone), run())
    assert [path.name for path in tmp_path.iterdir()] == ["alone.json"]
    paths = {name: tmp_path / name for name in ("report_json", "report_md", "trace_json")}
    write_artifacts(ArtifactOptions(**paths, layer_trace_json=tmp_path / "layers"), run())
    assert paths["report_json"].read_bytes() == alone.read_bytes() == encode(run().report)
    assert paths["report_md"].read_text() == render_markdown(run().report) + "\n"
    assert paths["trace_json"].read_bytes() == encode(run().trace)
    assert (tmp_path / "layers").read_bytes() == encode(run().layers)


@pytest.mark.contract("LIS-55", "LIS-86")
def test_nothing_is_written_where_one_artifact_is_missing(tmp_path):
    options = ArtifactOptions(report_json=tmp_path / "r", layer_trace_json=tmp_path / "l")
    with pytest.raises(ArtifactError, match="no layer was captured"):
        write_artifacts(options, run(PLAIN))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("LIS-13", "LIS-40", "LIS-84", "LIS-7")
@pytest.mark.parametrize(
    ("prompt", "format", "mode"),
    [
        (None, "hf", "tokens"),
        ("a", "hf", "hf_tokenizer_prompt"),
        ("a", "gguf", "vocab_prompt"),
    ],
)
def test_run_shows_its_tokens_and_measures_its_tokenizer(
    prompt, format, mode, tmp_path, monkeypatch, capsys
):
    shown, modes = [], []

    class Writer:
        def __init__(self, model, text, said):
            shown.append((text, said))

        def add(self, tokens):
            shown.append(tokens)

        def end(self):
            shown.append("end")

    def engine(model, mode):
        modes.append(mode)
        found = SeededEngine()
        tokenizer = Hasher().add("a").fingerprint()
        found.facts = msgspec.structs.replace(
            found.facts, input_mode=mode, tokenizer=tokenizer, load_ns={"model_load": 7}
        )
        return found

    monkeypatch.setattr("cke.api.execution.ModelEngine", engine)
    monkeypatch.setattr("cke.cli.run_artifacts.TokenWriter", Writer)
    request = Request(tokens=[3, 5, 7], prompt=prompt, new_tokens=8, stops=())
    path = tmp_path / "r.json"
    model = SimpleNamespace(files=SimpleNamespace(format=format))
    options = ArtifactOptions(report_json=path, perf=True)
    assert run_with_artifacts(options, model, request, (100, 350, 950)) == 0
    report = read_run_report(path).value
    tokens = run(PLAIN).report.report.selected_token_ids
    assert shown == [(prompt is not None, True), *([token] for token in tokens), "end"]
    assert (modes, report.manifest.input.mode) == ([mode], mode)
    stages = report.report.perf.stages
    loading = (stages.model_load, stages.tokenizer_load, stages.tokenizer_encode)
    assert [item.ns for item in loading] == [7, 250, 600]
    assert capsys.readouterr().err.count("lis: perf-stage ") == 7


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model("llama")


@pytest.mark.contract("LIS-1", "LIS-17", "LIS-40", "LIS-62", "LIS-83", "LIS-84", "LIS-85")
@pytest.mark.contract("LIS-86", "LIS-88", "LIS-89", "LIS-101", "LIS-100", "LIS-146", "LIS-147")
@pytest.mark.contract("LIS-15", "LIS-9", "LIS-13", "LIS-32")
def test_artifacts_of_one_run(model, tmp_path, capsys):
    paths = {name: tmp_path / f"{name}.json" for name in ("report", "trace", "layers")}
    everything = [
        "--report-json", str(paths["report"]), "--trace-json", str(paths["trace"]),
        "--layer-trace-json", str(paths["layers"]), "--report-md", str(tmp_path / "r.md"),
        "--layer-checkpoints", "2", "--intra-layer-checkpoints", "1",
    ]  # fmt: skip
    assert main(arguments(model, *everything, "--diagnostics", "--perf-per-token")) == 0
    first = capsys.readouterr()
    assert [prefix for prefix in PREFIXES if f"\n{prefix}" not in f"\n{first.err}"] == []
    report = read_run_report(paths["report"])
    trace, layers = read_decode_trace(paths["trace"]), read_layer_trace(paths["layers"])
    check_decode_trace(trace.value, paths["trace"])
    assert list(report.value.report.selected_token_ids) == [int(t) for t in first.out.split()]
    assert report.value.manifest == trace.value.manifest == layers.value.manifest
    ids = {item.value.artifact_set_id for item in (report, trace, layers)}
    assert len(ids) == 1
    stat_lines = re.findall(r"^lis: layer-checkpoint .*name=(\S+) .*min=", first.err, re.MULTILINE)
    assert stat_lines == [entry.name for entry in layers.value.layer_trace]
    assert "attn_scale value=" in first.err
    assert len(layers.value.intra_layer_trace) == 17
    cache = report.value.report.kv_cache
    assert (cache.max_tokens, cache.used_tokens) == (128, 6)
    assert report.value.manifest.backend.name == "xla_cpu_per_layer"
    for path in filter(Path.is_file, tmp_path.iterdir()):
        text = path.read_text()
        assert str(tmp_path) not in text
        assert model.name not in text
        assert "attn_scale" not in text

    again = tmp_path / "again"
    again.mkdir()
    moved = [part.replace(str(tmp_path), str(again)) for part in everything]
    assert main(arguments(model, *moved, "--diagnostics", "--perf-per-token")) == 0
    capsys.readouterr()
    for name in ("trace.json", "layers.json"):
        assert masked(again / name) == masked(tmp_path / name)

    alone = ["--report-json", str(tmp_path / "a.json")]
    assert main(arguments(model, *alone)) == 0
    quiet = capsys.readouterr()
    assert main(arguments(model, "--report-json", str(tmp_path / "b.json"), *everything[2:4])) == 0
    traced = capsys.readouterr()
    assert (quiet.out, quiet.err) == (traced.out, traced.err)
    assert masked(tmp_path / "a.json") == masked(tmp_path / "b.json")
    assert "perf" not in json.loads((tmp_path / "a.json").read_text())["report"]


def masked(path):
    """The text of an artifact without its set id, which is all that two equal runs may vary."""
    text, count = re.subn("aset1:[0-9a-f]{32}", "", path.read_text())
    assert count == 1
    return text


@pytest.mark.contract("LIS-86", "LIS-111")
def test_prefill_is_captured_as_step_0(model, tmp_path, capsys):
    target = tmp_path / "l.json"
    options = ["--layer-trace-json", str(target), "--layer-checkpoints", "0"]
    assert main(arguments(model, *options)) == 0
    shown = capsys.readouterr()
    found = read_layer_trace(target).value
    assert {entry.phase for entry in found.layer_trace} == {"prefill"}
    assert {entry.shape[:2] for entry in found.layer_trace} == {(1, 2)}
    assert main(arguments(model, "--trace-json", str(tmp_path / "t.json"))) == 0
    assert capsys.readouterr().out == shown.out


@pytest.mark.contract("LIS-55")
def test_capture_that_changes_a_bit_of_the_logits_is_refused():
    import numpy as np

    from cke.api.execution import _check_neutral
    from cke.artifacts.refusal import ArtifactError

    _check_neutral(np.zeros(3), np.zeros(3))
    with pytest.raises(ArtifactError, match="the capture is not neutral"):
        _check_neutral(np.zeros(3), -np.zeros(3))


@pytest.mark.contract("LIS-114", "LIS-94", "LIS-113")
def test_qwen3_has_a_legacy_trace_and_no_stages(tiny_model, tmp_path, capsys):
    qwen3 = tiny_model("qwen3")
    options = ["--layer-trace-json", str(tmp_path / "l.json"), "--layer-checkpoints", "1"]
    assert main(arguments(qwen3, *options, "--intra-layer-checkpoints", "1")) == 2
    assert "does not support the family qwen3_dense_decoder" in capsys.readouterr().err
    assert not (tmp_path / "l.json").exists()
    assert main(arguments(qwen3, *options)) == 0
    found = read_layer_trace(tmp_path / "l.json").document
    assert "checkpoint_layout" not in found
    assert found["layer_trace"][0]["name"] == "layer.0.output"


@pytest.mark.slow
@pytest.mark.contract("LIS-152")
def test_windowed_cache_is_uniform_and_described(tiny_model, tmp_path):
    target = tmp_path / "r.json"
    options = ["--report-json", str(target), "--generate", "9"]
    assert main(["run", "--model", str(tiny_model("mistral")), "--tokens", "5 6 7", *options]) == 0
    cache = read_run_report(target).value.report.kv_cache
    assert cache.max_tokens == 128


@pytest.mark.slow
@pytest.mark.contract("LIS-152")
def test_recurrent_state_is_refused(tiny_model, tmp_path, capsys):
    options = ["--report-json", str(tmp_path / "r.json")]
    assert main(arguments(tiny_model("granite_hybrid"), *options)) == 2
    assert "report.kv_cache can describe" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.contract("LIS-15", "LIS-16", "LIS-17", "LIS-54", "LIS-78", "LIS-104", "LIS-7")
def test_no_artifact_holds_the_prompt_the_answer_or_a_path(smollm2_gguf, tmp_path, capsys):
    folder = tmp_path / "marker-folder"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(smollm2_gguf)
    names = ("report-json", "trace-json", "layer-trace-json", "report-md")
    options = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    prompt = "The xyzzymarker of France is"
    command = ["run", "--model", str(folder / "model.gguf"), "--prompt", prompt, "-n", "12"]
    assert main([*command, *options, "--layer-checkpoints", "1"]) == 0
    answer = capsys.readouterr().out.strip()
    assert len(answer) > 8
    for name in names:
        text = (tmp_path / name).read_text()
        for marker in ("xyzzy", answer, answer[:8], "marker-folder", str(tmp_path)):
            assert marker not in text
    manifest = read_run_report(tmp_path / "report-json").value.manifest
    assert (manifest.input.mode, manifest.model.format) == ("vocab_prompt", "gguf")
