"""The small MoE that is trained here: its campaign publishes QxQ and BxQ, or refuses."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from cke.cli import main
from cke.fidelity.artifact import write_checksums
from cke.fidelity.suite import pretty
from cke.schemas.reading import read_json
from tools.train_moe import trained

pytestmark = [pytest.mark.slow, pytest.mark.oracle_torch, pytest.mark.multiprocess]
PLAN = Path(__file__).parents[2] / "examples" / "campaigns" / "trained_moe.toml"


def run(root: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("MODEL", str(model))
    return main(["fidelity", "campaign", str(root / "plan.toml"), "--out", str(root / "run")])


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign over a model of few steps, two contexts and one candidate."""
    root = tmp_path_factory.mktemp("moe")
    model = trained(steps=4, root=root / "trained")
    root.joinpath("plan.toml").write_text(
        'reference = "${MODEL}"\nrows = 2\n[suite]\ncontexts = 24\nlength = 12\n'
        '[candidates]\nint4 = { format = "int4" }\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        assert run(root, model, patch) == 0
    return root


@pytest.fixture
def artifact(campaign: Path, tmp_path: Path) -> Path:
    """A copy of the artifact, free to be changed."""
    return Path(shutil.copytree(campaign / "run" / "artifact", tmp_path / "artifact"))


@pytest.mark.contract("LAW-14.1", "LAW-14.5", "LAW-14.10", "LAW-14.11")
def test_pair_is_published_with_six_runs_that_repeat(campaign: Path, artifact: Path) -> None:
    assert main(["fidelity", "publish", str(artifact), str(artifact.with_name("out"))]) == 0
    root = artifact / "models" / "int4"
    routing, report = (read_json(root / f"{name}.json") for name in ("routing", "report"))
    assert routing["natural_control_parity"]["passed"] is True
    assert [len(routing["controls"][n]) for n in ("natural", "forced_natural", "bxq")] == [2, 2, 2]
    assert routing["qxq_cell"]["mean_kld"] == report["mean_kld"] > 0
    page = root.joinpath("one-pager.md").read_text("utf-8")
    for cell in ("qxq_cell", "bxq_cell"):
        assert repr(routing[cell]["mean_kld"]) in page
    assert read_json(campaign / "run" / "trace" / "routing-trace.json")["layer_map"] == [0, 1, 2]


BREAKS: list[tuple[tuple[str, ...], Any, str]] = [
    (("controls", "bxq", "1", "kld_sha256"), "0" * 64, "the `bxq` runs differ in `kld_sha256`"),
    (("controls", "natural", "1", "ids_sha256"), "0" * 64, "the `natural` runs differ in `ids"),
    (("bxq_cell", "candidate_weights_sha256"), "0" * 64, "`bxq_cell` is not bound by `candidate"),
    (("bxq_cell", "routing_trace_sha256"), "0" * 64, "BxQ's digest is of another trace"),
    (("trace", "file_hashes", "rows/row-0000.safetensors"), "0" * 64, "BxQ's digest is of another"),
]


@pytest.mark.contract("LAW-14.4", "LAW-14.7", "LAW-14.11", "LAW-14.23")
@pytest.mark.parametrize(("path", "value", "message"), BREAKS)
def test_one_broken_repeat_or_digest_refuses_publication(
    artifact: Path,
    path: tuple[str, ...],
    value: Any,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = artifact / "models" / "int4" / "routing.json"
    routing = read_json(file)
    holder: Any = routing
    for name in path[:-1]:
        holder = holder[int(name) if isinstance(holder, list) else name]
    holder[path[-1]] = value
    file.write_bytes(pretty(routing))
    write_checksums(artifact)
    assert main(["fidelity", "publish", str(artifact), str(artifact.with_name("out"))]) == 4
    assert f"`int4`: law 14: {message}" in capsys.readouterr().err
    assert not artifact.with_name("out").exists()


@pytest.mark.contract("LAW-14.7", "LAW-14.25")
def test_one_other_id_in_the_trace_refuses_the_pair(
    campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Path(shutil.copytree(campaign / "run" / "trace", tmp_path / "trace"))
    row = trace / "rows" / "row-0001.safetensors"
    ids = load(row.read_bytes())["ids"].copy()
    ids[1, 3, 0] = next(i for i in range(8) if i not in ids[1, 3])
    row.write_bytes(save({"ids": ids}))
    folder = campaign / "run"
    command = ["fidelity", "paired", str(folder / "candidates" / "int4")]
    command += ["--capture", str(folder / "capture"), "--suite", str(folder / "suite")]
    command += ["--trace", str(trace), "--scores", str(folder / "scores" / "int4")]
    assert main(command) == 4
    assert "`rows/row-0001.safetensors` is not the file that the trace" in capsys.readouterr().err


@pytest.mark.nightly
def test_trained_routing_is_published_for_every_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained()
    loss = read_json(model / "training.json")["loss"]
    assert np.mean(loss) < 3.6
    shutil.copy(PLAN, tmp_path / "plan.toml")
    assert run(tmp_path, model, monkeypatch) == 0
    artifact = tmp_path / "run" / "artifact"
    assert main(["fidelity", "publish", str(artifact), str(tmp_path / "published")]) == 0
    reports = {
        name: read_json(artifact / "models" / name / "report.json")["mean_kld"]
        for name in ("int8", "fp8_e4m3", "nvfp4", "int4")
    }
    assert list(reports) == sorted(reports, key=reports.__getitem__)
