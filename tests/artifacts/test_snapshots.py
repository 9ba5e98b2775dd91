"""The committed snapshots, and what their reader refuses."""

import json

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.fingerprints import canonical_bytes
from cke.artifacts.pass1 import first_difference
from cke.artifacts.reading import load_layer_trace, load_run_report
from cke.artifacts.snapshot import encode_snapshot, make_snapshot, read_snapshot
from cke.errors import CkeError
from tests.artifacts.documents import DELETE, PATH, PLAIN, put, run
from tests.artifacts.generations import FAULT
from tools.snapshots import FILES


@pytest.mark.contract("LIS-20", "LIS-150")
@pytest.mark.parametrize("kind", sorted(FILES))
def test_committed_snapshot_is_whole_and_each_report_stands_alone(kind, repository):
    path = repository / "tests" / FILES[kind]
    snapshot = read_snapshot(path)
    assert (snapshot.schema, snapshot.kind) == ("lis.execution_artifact/v1", kind)
    for document in json.loads(path.read_text())["run_reports"]:
        load_run_report(document, path)
    families = {item.manifest.model.family for item in snapshot.run_reports}
    assert families == {"qwen3_dense_decoder" if "qwen3" in kind else "llama3_decoder"}


@pytest.mark.contract("LIS-150", "LIS-18")
def test_runs_of_the_parity_snapshots_agree(repository):
    for kind in ("token_parity_snapshot", "qwen3_sanity_snapshot"):
        parity = read_snapshot(repository / "tests" / FILES[kind]).token_parity
        assert parity.first_difference is None
        assert parity.compared_tokens >= 8


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.contract("LIS-150", "LIS-18")
def test_smollm2_gives_the_committed_tokens(repository, smollm2_gguf):
    from cke.api import load
    from cke.api.execution import ModelEngine
    from tools.snapshots import PARITY

    committed = read_snapshot(repository / "tests" / FILES["token_parity_snapshot"])
    found = execute(ModelEngine(load(smollm2_gguf, driver="per_layer")), PARITY).report
    for report in committed.run_reports:
        assert report.report.prompt_sequences == found.report.prompt_sequences
        assert report.report.selected_token_ids == found.report.selected_token_ids
        assert report.manifest.model == found.manifest.model
        assert report.manifest.config == found.manifest.config


@pytest.mark.contract("LIS-20")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "cke.snapshot.v1"),
        ("schema", DELETE),
        ("kind", "other"),
        ("run_reports", []),
        ("run_reports.0.schema", "cke.run_report.v1"),
        ("run_reports.0.report.selected_token_count", 3),
        ("token_parity", DELETE),
        ("token_parity.first_difference", 2),
        ("perf", {}),
        ("note", 1),
    ],
)
def test_snapshot_that_is_not_whole_is_refused(path, value, tmp_path):
    target = tmp_path / "snapshot.json"
    reports = [run(PLAIN).report, run(PLAIN).report]
    target.write_bytes(encode_snapshot(make_snapshot("token_parity_snapshot", reports)))
    read_snapshot(target)
    target.write_text(json.dumps(put(json.loads(target.read_text()), path, value)))
    with pytest.raises(CkeError):
        read_snapshot(target)


@pytest.mark.contract("LIS-20")
def test_snapshot_that_is_no_object_is_refused(tmp_path):
    target = tmp_path / "snapshot.json"
    target.write_text("[1]")
    with pytest.raises(CkeError, match=r"snapshot\.json"):
        read_snapshot(target)


@pytest.mark.contract("LIS-20", "LIS-150")
def test_summaries_are_those_of_the_embedded_runs(tmp_path):
    first, other = run(PLAIN).report, run(PLAIN, FAULT).report
    index = first_difference(first.report.selected_token_ids, other.report.selected_token_ids)
    parity = make_snapshot("token_parity_snapshot", [first, other, first]).token_parity
    assert (parity.compared_tokens, parity.first_difference) == (8, index)
    timed = [
        run(msgspec.structs.replace(PLAIN, generate=count, perf=True)).report for count in (1, 8)
    ]
    found = make_snapshot("perf_smoke", [*timed, first])
    assert (found.perf.runs, found.perf.tag) == (2, "run")
    assert found.perf.median_itl_ms == timed[1].report.perf.itl_ms
    ttft = [item.report.perf.ttft_ms for item in timed]
    assert found.perf.median_ttft_ms == sum(ttft) / 2
    assert found.token_parity is msgspec.UNSET


@pytest.mark.contract("LIS-158")
def test_formats_keep_their_own_nulls_numbers_and_canonical_form():
    document = run().documents()["layer_trace"]
    assert list(document)[:3] == ["schema", "kind", "artifact_set_id"]
    assert "body" not in document
    put(document, "layer_trace.0.min", "NaN")
    with pytest.raises(CkeError):
        load_layer_trace(document, PATH)
    assert canonical_bytes({"b": 1.0, "a": "é"}) == '{"a":"é","b":1.0}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        canonical_bytes(float("nan"))
