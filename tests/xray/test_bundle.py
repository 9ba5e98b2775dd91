"""A bundle judges its finding again without the model, or says what is missing."""

import hashlib
import json
import re
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cke.api.diagnosis import LiveOracle, xray
from cke.api.report_files import moved, with_progress, write_report
from cke.cli import main
from cke.errors import CkeError, MissingInputError
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.diagnosis import Diagnosis
from cke.xray.bundle import pack
from cke.xray.bundle_reader import read_manifest, unpack
from tests.models import TinyModel
from tests.xray import reports
from tests.xray.faults import FAULTS, edited


class Packed(NamedTuple):
    """A bundle of a confirmed finding, and the report that it was made of."""

    bundle: Path
    report: Diagnosis


@pytest.fixture(scope="module")
def packed(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The bundle of a wrong epsilon, with everything it was made of gone."""
    folder = tmp_path_factory.mktemp("packed")
    circuit = edited(FAULTS["norm-epsilon"], folder / "circuits")
    out = folder / "out"
    report = xray(tiny_model("llama"), oracle="pytorch", circuit=circuit, out=out)
    assert main(["xray", "bundle", str(out), "-o", str(folder / "b.zip")]) == 0
    shutil.rmtree(out)
    shutil.rmtree(circuit.parent)
    return Packed(folder / "b.zip", report)


def _rewritten(
    source: Path, target: Path, change: Callable[[dict[str, bytes]], None], index: bool = True
) -> Path:
    """Return a bundle with changed files; with `index` their digests are made to fit."""
    with zipfile.ZipFile(source) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    if index:
        listed = json.loads(files["bundle.json"])
        for name in listed["files"]:
            if name in files:
                listed["files"][name] = hashlib.sha256(files[name]).hexdigest()
        files["bundle.json"] = json.dumps(listed).encode()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


def test_a_report_without_its_captures_cannot_be_packed(tmp_path: Path) -> None:
    write_report(reports.clean(), tmp_path)
    with pytest.raises(CkeError, match=r"CKE732\]: expected the folder of a report with its capt"):
        pack(tmp_path, tmp_path / "b.zip", reports.clean())
    assert not list(tmp_path.glob("*.zip*"))


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_text("no archive")
    with pytest.raises(CkeError, match=r"CKE733\]: expected a bundle .* malformed"):
        unpack(path, tmp_path / "out")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("report.json", "{}")
    with pytest.raises(CkeError, match=r"no `bundle.json`"):
        unpack(path, tmp_path / "out")
    with pytest.raises(MissingInputError, match="CKE731"):
        unpack(tmp_path / "none.zip", tmp_path / "out")
    with pytest.raises(CkeError, match="CKE733"):
        unpack(tmp_path, tmp_path / "out")


@pytest.mark.contract("XRAY-28")
@pytest.mark.oracle_torch
@pytest.mark.slow
def test_a_bundle_is_judged_from_another_folder_without_model_weights_or_circuit(
    packed: Packed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(packed.bundle, tmp_path / "b.zip")
    monkeypatch.chdir(tmp_path)
    assert main(["xray", "--replay", "b.zip", "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["outcome"] == "same"
    found = packed.report.first_divergence
    assert found is not None
    assert found.confirmed_by is not None
    assert result["confirmed_by"]["new"] == found.confirmed_by.new == 1e-6
    names = set(zipfile.ZipFile("b.zip").namelist())
    assert {
        *("report.json", "report.md", "drift.svg", "fix.patch", "run.json", "README.md"),
        *("state.json", "ranking.json"),
    } <= names
    _rewritten(packed.bundle, tmp_path / "light.zip", _without_weights)
    assert main(["xray", "--replay", "light.zip"]) == 4
    assert "the weight `" in capsys.readouterr().out


def _without_weights(files: dict[str, bytes]) -> None:
    evidence = json.loads(files["evidence/evidence.json"])
    for item in evidence["weights"]:
        item["key"] = None
    files["evidence/evidence.json"] = json.dumps(evidence).encode()


def _edit(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


def _drop(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.pop(name) and None


def _list(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        index = json.loads(files["bundle.json"])
        index["files"][name] = hashlib.sha256(b"evil").hexdigest()
        files["bundle.json"] = json.dumps(index).encode()
        files[name] = b"evil"

    return change


@pytest.mark.contract("XRAY-28")
@pytest.mark.contract("XRAY-25")
@pytest.mark.oracle_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "index", "message"),
    [
        (_edit("report.md", b"Again", b"again"), False, "`report.md` was changed after it was"),
        (_edit("evidence/weights.npz", b"w0", b"w1"), False, "`evidence/weights.npz` was changed"),
        (_drop("evidence/subject/trace.json"), True, "no `evidence/subject/trace.json`"),
        (_drop("bundle.json"), False, "no `bundle.json`"),
        (_list("../evil"), True, "`../evil` is no file of a bundle"),
        (_list("/tmp/evil"), True, "`/tmp/evil` is no file of a bundle"),
        (_list("evidence/../../evil"), True, "is no file of a bundle"),
    ],
)
def test_a_bundle_that_was_tampered_with_is_refused_and_writes_nothing_else(
    change: Callable[[dict[str, bytes]], None],
    index: bool,
    message: str,
    packed: Packed,
    tmp_path: Path,
) -> None:
    path = _rewritten(packed.bundle, tmp_path / "b.zip", change, index)
    with pytest.raises(CkeError, match=rf"CKE733\].*{re.escape(message)}"):
        unpack(path, tmp_path / "inner" / "out")
    assert {item.name for item in tmp_path.iterdir()} <= {"b.zip", "inner"}
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.oracle_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_edit("report.json", b"1e-06", b"2e-06"), "CKE730"),
        (_edit("evidence/evidence.json", b'"w0"', b'"w9"'), "CKE733"),
        (_edit("evidence/evidence.json", b'"float32"', b'"no type"'), "CKE733"),
        (_edit("evidence/subject/trace.json", b'"segment": 0', b'"segment": 7'), "CKE706"),
        (_edit("evidence/subject/tensors.safetensors", b"data_offsets", b"data_offzets"), "CKE"),
        (
            _edit("evidence/manifest.json", b'"operator":"rms_norm"', b'"operator":"os_system"'),
            "CKE733",
        ),
    ],
)
def test_edits_whose_digests_were_made_to_fit_are_errors_of_ours(
    change: Callable[[dict[str, bytes]], None],
    code: str,
    packed: Packed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _rewritten(packed.bundle, tmp_path / "b.zip", change)
    assert main(["xray", "--replay", str(path)]) in (2, 3, 4)
    assert f"error[{code}" in capsys.readouterr().err


@pytest.mark.oracle_torch
@pytest.mark.slow
def test_links_doubles_and_bombs_are_refused(packed: Packed, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed.bundle) as archive:
        files = {item: archive.read(item) for item in archive.infolist()}
    link = tmp_path / "link.zip"
    with zipfile.ZipFile(link, "w") as archive:
        for item, data in files.items():
            if item.filename == "report.md":
                item.external_attr = (stat.S_IFLNK | 0o777) << 16
                data = b"/etc/passwd"
            archive.writestr(item, data)
    with pytest.raises(CkeError, match=r"`report\.md` was changed"):
        unpack(link, tmp_path / "link")
    assert not (tmp_path / "link" / "report.md").is_symlink()
    double = shutil.copy(packed.bundle, tmp_path / "double.zip")
    with zipfile.ZipFile(double, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("report.md", "other")
    with pytest.raises(CkeError, match="a file is in it twice"):
        unpack(Path(double), tmp_path / "double")


def test_a_bundle_that_claims_more_than_the_limit_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cke.xray.bundle_reader.MAX_BUNDLE", 1 << 20)
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("evidence/weights.npz", bytes(2 << 20))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(CkeError, match=r"CKE733.*its files are more than"):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.contract("XRAY-28")
@pytest.mark.oracle_torch
@pytest.mark.slow
def test_a_pass_and_a_stop_are_packed_with_their_metadata(
    tiny_model: TinyModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = xray(tiny_model("llama"), oracle="pytorch", out=tmp_path / "pass")
    assert report.verdict == "pass_within_gate"
    passed = str(tmp_path / "pass.zip")
    assert main(["xray", "bundle", str(tmp_path / "pass"), "-o", passed]) == 0
    assert main(["xray", "--replay", passed]) == 0
    assert "shows nothing that is wrong: the same as the report's" in capsys.readouterr().out
    assert not [name for name in zipfile.ZipFile(passed).namelist() if "weights" in name]
    kept = LiveOracle.capture

    def late(oracle: LiveOracle, request: CaptureRequest, out: Path) -> TraceFolder:
        moved = msgspec.structs.replace(request, first_position=3)
        return kept(oracle, moved, out)

    monkeypatch.setattr(LiveOracle, "capture", late)
    report = xray(tiny_model("llama"), oracle="pytorch", out=tmp_path / "stop")
    assert report.status == "stopped"
    stopped = str(tmp_path / "stop.zip")
    assert main(["xray", "bundle", str(tmp_path / "stop"), "-o", stopped]) == 0
    capsys.readouterr()
    assert main(["xray", "--replay", stopped, "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert report.first_divergence is not None
    assert result["failure_class"] == report.first_divergence.failure_class
    assert result["outcome"] == "same"


def _at(stop: int) -> object:
    found = msgspec.structs.replace(
        reports.divergence(), checkpoint_id=reports.points()[stop].checkpoint_id
    )
    return msgspec.structs.replace(reports.finding(), first_divergence=found)


def test_progress_says_where_the_first_divergence_went() -> None:
    one, two = _at(1), _at(2)
    assert moved(two, one) == (  # type: ignore[arg-type]
        f"moved later: from {reports.EDGE} in forward 0 to logits in forward 0"
    )
    assert moved(one, two).startswith("moved earlier: from logits")  # type: ignore[arg-type]
    assert moved(one, one) == f"stayed at {reports.EDGE} in forward 0"  # type: ignore[arg-type]
    assert moved(reports.clean(), reports.finding()).startswith(f"gone: {reports.EDGE}")
    assert moved(reports.finding(), reports.clean()) == ("the earlier report had no divergent edge")
    missing = msgspec.structs.replace(reports.clean(), status="incomplete", verdict=None)
    assert moved(missing, reports.finding()) == "not known: the evidence is incomplete"
    assert moved(reports.stopped(), reports.finding()).startswith("stopped in the metadata stage")


def test_progress_stands_first_in_the_fix_progression() -> None:
    report = with_progress(reports.finding(), reports.finding(), "ab" * 32)
    assert report.fix_progression[0].startswith("since abababababab: stayed at")
    assert report.fix_progression[1:] == reports.finding().fix_progression


@pytest.mark.parametrize("name", ["../evil.embedding", "a.b", "os system", "embedding.jnp"])
def test_a_manifest_names_functions_of_the_registry_only(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "generated" / "llama" / "manifest.json"
    manifest = json.loads(source.read_text())
    call = manifest["calls"]["programs"][0]["functions"][0]["calls"][0]
    call["kernel_id"], _, call["function"] = name.rpartition(".")
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CkeError, match=r"CKE733\].*is no kernel's function"):
        read_manifest(path)
