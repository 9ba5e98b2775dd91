"""`cke inspect`: run reports and perf logs, and nothing else."""

import json

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.inspect import inspect_file, parse_perf_log
from cke.artifacts.lines import PREFIXES, run_lines
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.writing import write_artifact
from cke.cli import main
from cke.errors import CkeError
from tests.artifacts.documents import PLAIN, document, put, run

PERF = msgspec.structs.replace(PLAIN, perf=True, perf_per_token=True, diagnostics=True)


@pytest.mark.contract("LIS-143", "LIS-156", "LIS-38")
def test_report_is_shown_and_its_payload_preserved(tmp_path, capsys):
    wider = put(document("run_report", PLAIN), "report.kv_cache.future", {"a": [1, 2]})
    path = tmp_path / "report.json"
    path.write_text(json.dumps(wider))
    assert main(["inspect", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == wider
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "llama3_decoder (seeded)" in shown
    assert "kv" not in shown.lower()


@pytest.mark.contract("LIS-143")
@pytest.mark.parametrize(("kind", "name"), [("trace", "decode_trace"), ("layers", "layer_trace")])
def test_trace_kinds_are_refused_by_name(kind, name, tmp_path, capsys):
    path = tmp_path / "trace.json"
    write_artifact(getattr(run(), kind), path)
    assert main(["inspect", str(path)]) == 4
    assert capsys.readouterr().err == (
        "trace.json: `$.kind`: error[CKE862]: "
        f"`cke inspect` shows run reports and perf logs, not a {name}\n"
    )


@pytest.mark.contract("LIS-143")
def test_other_json_is_refused_for_what_it_is(tmp_path):
    path = tmp_path / "a.json"
    for text, expected in (
        (" [1]", "expected an object"),
        ('{"kind": "intra_layer_localization"}', "not a intra_layer_localization"),
    ):
        path.write_text(text)
        with pytest.raises(CkeError, match=expected):
            inspect_file(path)


@pytest.mark.contract("LIS-39", "LIS-143", "LIS-146", "LIS-156")
def test_perf_log_is_read_and_other_lines_are_ignored(tmp_path):
    engine = SeededEngine()
    lines = run_lines(execute(engine, PERF), engine.facts, diagnostics=True)
    cache = [line for line in lines if line.startswith("lis: kv-cache: ")]
    assert len(cache) == 1
    without = [line for line in lines if line not in cache]
    assert parse_perf_log("\n".join(lines)) == parse_perf_log("\n".join(without))
    found = parse_perf_log("\n".join(lines))
    assert [len(found[name]) for name in ("stages", "summary", "tokens")] == [7, 1, 8]
    path = tmp_path / "stderr.txt"
    for prefix in ("lis: perf-stage ", "lis: perf-summary "):
        path.write_text("\n".join(line for line in lines if line.startswith(prefix)))
        assert inspect_file(path).kind == "perf_log"
    path.write_text("\n".join(["building", *lines]))
    assert "decode_steady_state" in inspect_file(path).text
    assert inspect_file(path).kind == "perf_log"


def test_file_that_is_neither_is_refused(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    assert main(["inspect", str(path)]) == 4
    assert "expected a run report, or stderr with `lis: perf-` lines" in capsys.readouterr().err


@pytest.mark.contract("LIS-146", "LIS-147")
def test_prefixes_are_frozen():
    assert sorted(PREFIXES.values()) == [
        "lis: generation-diagnostic ",
        "lis: generation-diagnostic-candidate ",
        "lis: generation-diagnostic-reasoning ",
        "lis: kv-cache: ",
        "lis: layer-checkpoint ",
        "lis: perf-per-token ",
        "lis: perf-stage ",
        "lis: perf-summary ",
        "lis: precision path=",
        "lis: simd backend=",
    ]
