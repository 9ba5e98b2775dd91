"""`cke fidelity`, from a campaign file to a published artifact."""

from pathlib import Path

import pytest

from cke.cli import main
from cke.fidelity.artifact import checksum_problems
from cke.schemas.reading import read_json
from tests.fidelity.conftest import ROWS, Tiny

pytestmark = pytest.mark.slow


@pytest.mark.contract("LAW-0.5", "LAW-12.4")
def test_campaign_file_runs_to_an_artifact_that_is_published_and_ranked(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'suite = "{tiny.root / "suite"}"\nreference = "{tiny.model}"\nrows = {ROWS}\n'
        f'[candidates]\nint8 = "{tiny.root / "int8"}"\nnvfp4 = "{tiny.root / "nvfp4"}"\n'
    )
    out = tmp_path / "run"
    assert main(["fidelity", "campaign", str(plan), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("compliant") == 2
    report = read_json(out / "scores" / "baseline" / "report.json")
    assert (report["mean_kld"], report["nonzero_positions"]) == (0.0, 0)
    artifact = out / "artifact"
    assert main(["fidelity", "publish", str(artifact), str(tmp_path / "published")]) == 0
    assert checksum_problems(tmp_path / "published") == []
    assert main(["fidelity", "leaderboard", str(artifact)]) == 0
    board = capsys.readouterr().out
    assert board.index("| int8 ") < board.index("| nvfp4 ")
    assert main(["fidelity", "check", str(artifact), "int8"]) == 0
    means = [read_json(out / "scores" / n / "report.json")["mean_kld"] for n in ("int8", "nvfp4")]
    known = read_json(tiny.root / "score-int8" / "report.json")["mean_kld"]
    assert means[0] == known < means[1]


def test_scoring_verb_needs_only_the_artifact(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(tmp_path / f"s{index}") for index in range(2)]
    given = ["--capture", str(tiny.artifact / "reference"), "--suite", str(tiny.artifact / "suite")]
    for index, folder in enumerate(folders):
        command = ["fidelity", "score", str(tiny.root / "int8"), *given, "--out", folder]
        assert main([*command, "--shard", f"{index}/2"]) == 0
    assert main(["fidelity", "merge", *folders, *given, "--out", str(tmp_path / "m")]) == 0
    known = read_json(tiny.root / "score-int8" / "report.json")["mean_kld"]
    assert capsys.readouterr().out.endswith(f"mean_kld {known!r}\n")


@pytest.mark.parametrize("shard", ["2/2", "x/2", "1"])
def test_shard_that_is_none_is_refused(
    tiny: Tiny, tmp_path: Path, shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny.capture.folder)
    command = ["fidelity", "score", "m", "--capture", folder, "--suite", str(tiny.root / "suite")]
    assert main([*command, "--out", str(tmp_path / "o"), "--shard", shard]) == 2
    assert "error[CKE873]: a shard expects `i/n`" in capsys.readouterr().err
