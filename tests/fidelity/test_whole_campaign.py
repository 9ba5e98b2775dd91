"""A campaign file run to an artifact, published, ranked, and scored against by a third party."""

import re
import shutil
from pathlib import Path

import pytest

from cke.api import load
from cke.api.fidelity import quantise
from cke.cli import main
from cke.fidelity.artifact import checksum_problems
from cke.schemas.reading import read_json
from tests.fidelity.conftest import ROWS, Tiny

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


@pytest.fixture(scope="module")
def campaign(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a campaign that ran: its plan, models, and `run`."""
    root = tmp_path_factory.mktemp("whole")
    shutil.copytree(tiny.model, root / "reference")
    for name in ("int8", "nvfp4"):
        shutil.copytree(tiny.root / name, root / name)
    quantise(load(tiny.model), "int4", root / "int4")
    root.joinpath("plan.toml").write_text(
        f'suite = "{tiny.root / "suite"}"\nreference = "reference"\nrows = {ROWS}\n'
        '[candidates]\nint8 = "int8"\nnvfp4 = "nvfp4"\nq4_0 = { format = "q4_0" }\n'
        'q8_0-integer = { format = "q8_0", activations = "q8_0" }\n'
        '[[excluded]]\ncandidate = "f32"\nrepository = "tiny"\nrevision = "1"\n'
        'reason = "the reference\'s own grid"\n'
    )
    assert run(root) == 0
    return root


def run(root: Path) -> int:
    return main(["fidelity", "campaign", str(root / "plan.toml"), "--out", str(root / "run")])


@pytest.mark.contract("LAW-0.5", "LAW-1.1", "LAW-1.2")
def test_baseline_is_zero_and_was_scored_by_another_process(campaign: Path) -> None:
    report = read_json(campaign / "run" / "scores" / "baseline" / "report.json")
    assert (report["mean_kld"], report["max_kld"], report["nonzero_positions"]) == (0.0, 0.0, 0)
    assert report["num_positions"] == ROWS * 16
    manifest = read_json(campaign / "run" / "capture" / "manifest.json")
    others = [
        read_json(campaign / "run" / "scores" / name / "report.json")["scored_by"]
        for name in ("int8", "q4_0")
    ]
    assert report["scored_by"] not in (manifest["captured_by"], *others)


@pytest.mark.contract("LAW-0.5", "LAW-12.2", "LAW-12.4", "LAW-10.3")
def test_artifact_is_published_ranked_and_enough_for_a_third_party(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = tmp_path / "published"
    assert main(["fidelity", "publish", str(campaign / "run" / "artifact"), str(published)]) == 0
    assert checksum_problems(published) == []
    assert main(["fidelity", "leaderboard", str(published)]) == 0
    board = capsys.readouterr().out
    order = re.findall(r"^\| (?:\d+|unranked) \| (\S+) \|", board, re.MULTILINE)
    assert [name for name in order if "†" not in name] == ["int8", "q4_0", "nvfp4"]
    assert "q8_0-integer†" in order
    assert "input_activation substituted" in board
    assert "- f32 (tiny 1): the reference's own grid" in board
    hidden = campaign / "reference"
    hidden.rename(campaign / "away")
    try:
        given = ["--capture", str(published / "reference"), "--suite", str(published / "suite")]
        out = tmp_path / "fifth"
        command = ["fidelity", "score", str(campaign / "int4"), *given, "--out", str(out)]
        assert main(command) == 0
    finally:
        campaign.joinpath("away").rename(hidden)
    means = {
        path.parent.name: read_json(path)["mean_kld"]
        for path in published.glob("models/*/report.json")
    }
    assert read_json(out / "report.json")["mean_kld"] > 10 * means["int8"] > 0
    weights = {path.name for path in published.rglob("*.safetensors")}
    assert weights == {"head.safetensors", *(f"row-{row:04d}.safetensors" for row in range(ROWS))}


@pytest.mark.contract("LAW-16.1", "LAW-16.2", "LAW-16.4")
def test_swapped_weights_folders_are_refused(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, aside = (campaign / name for name in ("int8", "nvfp4", "aside"))
    for one, two in ((first, aside), (second, first), (aside, second)):
        one.rename(two)
    try:
        assert run(campaign) == 4
        assert "fails laws [16]" in capsys.readouterr().out
        published = tmp_path / "published"
        artifact = str(campaign / "run" / "artifact")
        assert main(["fidelity", "publish", artifact, str(published)]) == 4
        shown = capsys.readouterr().err
        for name in ("int8", "nvfp4"):
            assert f"`{name}`: law 16: the published inspection is of other weights" in shown
        assert not published.exists()
    finally:
        for one, two in ((second, aside), (first, second), (aside, first)):
            one.rename(two)
    assert run(campaign) == 0


@pytest.mark.contract("LAW-16.2")
def test_made_candidate_with_other_weights_is_refused(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign / "run" / "candidates"
    kept = {name: made / name / "weights.safetensors" for name in ("q4_0", "q8_0-integer")}
    content = {name: path.read_bytes() for name, path in kept.items()}
    kept["q4_0"].write_bytes(content["q8_0-integer"])
    try:
        assert run(campaign) == 4
    finally:
        kept["q4_0"].write_bytes(content["q4_0"])
    shown = capsys.readouterr().err
    assert "`q4_0` holds other weights than the ones it is named for" in shown


def test_candidate_on_the_references_own_grid_is_refused(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = campaign / "plan.toml"
    before = plan.read_text()
    report = campaign / "run" / "scores" / "baseline" / "report.json"
    stored = report.read_text()
    report.write_text(stored.replace('"format": "float"', '"format": "Q4_0"', 1))
    try:
        assert run(campaign) == 4
    finally:
        report.write_text(stored)
        plan.write_text(before)
    assert "`q4_0` is of the reference's own grid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("int8 = {}", "candidate `int8` expects `path` or `format`, one of the two"),
        ('int8 = "${CKE_NO_SUCH}"', "`${CKE_NO_SUCH}` names a variable that is not set"),
        ("[[excluded]]", "an excluded candidate lacks `candidate`"),
    ],
)
def test_plan_that_is_incomplete_is_refused(
    campaign: Path, changed: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = campaign / "plan.toml"
    before = plan.read_text()
    old = changed if changed.startswith("[[") else 'int8 = "int8"'
    plan.write_text(before.replace(old, f"{changed}\n{old}" if old == changed else changed, 1))
    try:
        assert run(campaign) == 2
    finally:
        plan.write_text(before)
    assert message in capsys.readouterr().err
