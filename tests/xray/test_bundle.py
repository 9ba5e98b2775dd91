"""A bundle judges its finding again without the model, or says what is missing."""

import json
import shutil
import zipfile
from pathlib import Path

import msgspec
import pytest

from cke.api.diagnosis import xray
from cke.api.report_files import moved, with_progress, write_report
from cke.cli import main
from cke.errors import CkeError, MissingInputError
from cke.xray.bundle import pack, unpack
from tests.models import TinyModel
from tests.xray import reports
from tests.xray.faults import FAULTS, edited


def test_a_report_without_evidence_cannot_be_packed(tmp_path: Path) -> None:
    write_report(reports.clean(), tmp_path)
    with pytest.raises(CkeError, match=r"CKE732\]: expected the report of a finding about an op"):
        pack(tmp_path, tmp_path / "b.zip", reports.clean())


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_text("no archive")
    with pytest.raises(CkeError, match=r"CKE733\]: expected a bundle .* malformed"):
        unpack(path, tmp_path / "out")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("report.json", "{}")
    with pytest.raises(CkeError, match=r"no `evidence/evidence.json`"):
        unpack(path, tmp_path / "out")
    with pytest.raises(MissingInputError, match="CKE731"):
        unpack(tmp_path / "none.zip", tmp_path / "out")


@pytest.mark.contract("XRAY-28")
@pytest.mark.oracle_torch
@pytest.mark.slow
def test_a_bundle_is_judged_without_model_weights_or_circuit(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circuit = edited(FAULTS["norm-epsilon"], tmp_path / "circuits")
    out = tmp_path / "out"
    report = xray(tiny_model("llama"), oracle="pytorch", circuit=circuit, out=out)
    bundle = tmp_path / "b.zip"
    assert main(["xray", "bundle", str(out), "-o", str(bundle)]) == 0
    shutil.rmtree(out)
    shutil.rmtree(circuit.parent)
    capsys.readouterr()
    assert main(["xray", "--replay", str(bundle), "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["outcome"] == "same"
    assert report.first_divergence is not None
    assert report.first_divergence.confirmed_by is not None
    assert result["confirmed_by"]["new"] == report.first_divergence.confirmed_by.new == 1e-6
    names = set(zipfile.ZipFile(bundle).namelist())
    assert {"report.json", "report.md", "drift.svg", "fix.patch", "README.md"} <= names
    _without_weights(bundle)
    assert main(["xray", "--replay", str(bundle)]) == 4
    assert "the weight `" in capsys.readouterr().out


def _without_weights(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    evidence = json.loads(files["evidence/evidence.json"])
    for item in evidence["weights"]:
        item["key"] = None
    files["evidence/evidence.json"] = json.dumps(evidence).encode()
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


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
    report = with_progress(reports.finding(), reports.finding())
    assert report.fix_progression[0].startswith("since ")
    assert report.fix_progression[1:] == reports.finding().fix_progression


@pytest.mark.parametrize("name", ["../evil", "a.b", "os system"])
def test_a_manifest_names_kernels_by_plain_names_only(name: str, tmp_path: Path) -> None:
    from cke.xray.bundle import read_manifest

    source = Path(__file__).parents[2] / "generated" / "llama" / "manifest.json"
    manifest = json.loads(source.read_text())
    manifest["calls"]["programs"][0]["functions"][0]["calls"][0]["kernel_id"] = name
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CkeError, match=r"CKE733\].*is no kernel's name"):
        read_manifest(path)
