"""The verbs of `cke fidelity` that score from an artifact, study repeats and record approvals."""

import shutil
from pathlib import Path

import pytest

from cke.cli import main
from cke.fidelity.checks.measurement import repeat_spread
from cke.fidelity.checks.publication import approval_problems
from cke.schemas.reading import read_json
from tests.fidelity.conftest import Tiny

pytestmark = pytest.mark.slow


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


@pytest.mark.contract("LAW-1.6")
def test_repeat_study_scores_every_pair_of_three_captures(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / f"capture-{index}" for index in range(3)]
    for folder in folders:
        shutil.copytree(tiny.capture.folder, folder)
    out = tmp_path / "repeat-study.json"
    names = [str(folder) for folder in folders]
    assert main(["fidelity", "repeat-study", *names, "--out", str(out)]) == 0
    assert capsys.readouterr().out == "floor 0.0\n"
    spread, problems = repeat_spread(read_json(out))
    assert (spread, problems) == (0.0, [])
    assert [pair["positions"] for pair in read_json(out)["pairwise"]] == [48, 48, 48]
    assert main(["fidelity", "repeat-study", names[0], names[0], names[1], "--out", str(out)]) == 2
    assert "a repeat study expects 3 captures" in capsys.readouterr().err
    head = folders[2] / "manifest.json"
    head.write_text(head.read_text().replace('"score_from": 0', '"score_from": 1'))
    assert main(["fidelity", "repeat-study", *names, "--out", str(out)]) == 2
    assert "score_from (`score_from`)" in capsys.readouterr().err


@pytest.mark.contract("LAW-13.1", "LAW-13.4")
def test_approval_is_recorded_once_and_only_where_a_law_permits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "approvals.json"
    given = ["--approver", "A. Person", "--justification", "why", "--out", str(out)]
    assert main(["fidelity", "approve", "1", *given]) == 0
    entry = read_json(out)["1"]
    assert approval_problems(entry) == []
    assert entry["approver"] == "A. Person"
    assert main(["fidelity", "approve", "1", *given]) == 4
    assert "an approval of law 1 is recorded" in capsys.readouterr().err
    for number in (2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 17):
        assert main(["fidelity", "approve", str(number), *given]) == 4
        assert f"law {number} permits no override" in capsys.readouterr().err
    blank = ["--approver", " ", "--justification", "why", "--out", str(out)]
    assert main(["fidelity", "approve", "12", *blank]) == 4
    assert "the approval has no `approver`" in capsys.readouterr().err
    assert list(read_json(out)) == ["1"]
