"""The report on disk: complete, bound, deterministic, new, and without any verdict."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cke.attention_packet.__main__ import main
from cke.attention_packet.analyze import LIMITATIONS
from cke.attention_packet.markdown import render_markdown, render_text
from cke.attention_packet.report import encode_report
from tests.attention_packet.build import PacketBuilder, example, random_values, run, values_packet

contract = pytest.mark.contract
VERDICT = re.compile(r"\b(ok|okay|verified|correct|correctness|success|valid|good|bad)\b", re.I)


def report_of(builder: PacketBuilder, folder: Path, code: int = 0) -> dict:
    path = builder.write(folder / "packet")
    output = folder / "report.json"
    assert main([str(path), "--output", str(output)]) == code
    return json.loads(output.read_text())


@contract("PKT-70")
def test_example_of_the_specification_is_analysed(tmp_path: Path) -> None:
    builder = example()
    assert builder.packet["capture"]["tensorPayloadBytes"] == 256
    shapes = {name: entry["shape"] for name, entry in builder.tensors.items()}
    assert shapes["queries"] == [1, 4, 1, 4]
    assert shapes["storedKeys"] == [1, 2, 3, 4]
    report = report_of(builder, tmp_path)
    assert report["schema"] == "darkbloom.attention-analysis.v1"
    assert report["status"] == "analyzed"


def test_report_has_the_fields_of_the_format(tmp_path: Path) -> None:
    report = report_of(example(), tmp_path)
    assert list(report) == [
        "schema",
        "status",
        "refusal",
        "inconclusiveReasons",
        "interpretation",
        "packetSHA256",
        "metadataSHA256",
        "identity",
        "selection",
        "sample",
        "geometry",
        "scale",
        "runtime",
        "tensorSHA256",
        "tensorNonfinite",
        "lastRowConsistency",
        "originalQueryReference",
        "referenceRoundedToOutputDType",
        "narrowedQueryCounterfactual",
        "additions",
        "limitations",
    ]
    assert len(report["selection"]) == 10
    assert set(report["narrowedQueryCounterfactual"]) >= {
        "differenceFromOriginalReference",
        "queryRoundingDifference",
    }
    row = {"mismatchedNativeElements": 0, "comparedNativeElements": 8}
    assert report["lastRowConsistency"] == {"storedKeys": row, "storedValues": row}


@contract("PKT-51")
def test_report_counts_what_is_not_finite_in_every_tensor(tmp_path: Path) -> None:
    builder = example()
    report = report_of(builder, tmp_path)
    zero = {"nan": 0, "positiveInfinity": 0, "negativeInfinity": 0}
    assert report["tensorNonfinite"] == {name: zero for name in builder.tensors}


@contract("PKT-63")
def test_report_binds_packet_metadata_tensors_and_runtime(tmp_path: Path) -> None:
    builder = example()
    report = report_of(builder, tmp_path)
    folder = tmp_path / "packet"

    def sha(name: str) -> str:
        return hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest()

    assert report["packetSHA256"] == sha("packet.json")
    assert report["metadataSHA256"] == sha("attention-metadata.json")
    files = {name: entry["file"] for name, entry in builder.tensors.items()}
    assert report["tensorSHA256"] == {name: sha(file) for name, file in files.items()}
    assert report["runtime"]["numpy"] == np.__version__
    assert report["identity"] == builder.packet["identity"]


@contract("PKT-63")
def test_report_is_the_same_for_the_same_packet(tmp_path: Path) -> None:
    builder = values_packet(*random_values(1, heads=8, width=64, tokens=300))
    path = builder.write(tmp_path)
    for name in ("first", "second"):
        assert main([str(path), "--output", str(tmp_path / name)]) == 0
    assert tmp_path.joinpath("first").read_bytes() == tmp_path.joinpath("second").read_bytes()
    assert str(tmp_path) not in tmp_path.joinpath("first").read_text()


def outcomes(tmp_path: Path) -> dict[str, str]:
    """The reports and renderings of every outcome, and of a faulty output."""
    builders = {"analyzed": example(), "unsupported": example(), "unconfirmed": example()}
    builders["unsupported"].record["phase"] = "prefill"
    builders["unconfirmed"].snapshot["forwardSucceeded"] = False
    builders["refused"] = example()
    builders["refused"].tensors["output"]["byteCount"] += 1
    q, k, v = random_values()
    builders["faulty"] = values_packet(q, k, v, np.full_like(q, 1e10))
    builders["nonfinite"] = values_packet(q, k, v, np.full_like(q, np.nan))
    texts = {}
    for name, builder in builders.items():
        analysis = run(builder, tmp_path / name).analysis
        texts[f"{name} json"] = encode_report(analysis).decode()
        texts[f"{name} text"] = render_text(analysis)
        texts[f"{name} markdown"] = render_markdown(analysis)
    return texts


@contract("PKT-59")
def test_no_report_says_that_numbers_are_good(tmp_path: Path) -> None:
    for name, text in outcomes(tmp_path).items():
        assert "pass" not in text.lower(), name
        assert not VERDICT.findall(text), (name, VERDICT.findall(text))


@contract("PKT-57")
def test_report_holds_no_nan(tmp_path: Path) -> None:
    for name, text in outcomes(tmp_path).items():
        if name.endswith("json"):
            json.loads(text, parse_constant=lambda word: pytest.fail(word))


@contract("PKT-49")
@pytest.mark.parametrize("kind", ["unsupported", "unconfirmed"])
def test_report_says_that_the_decision_cannot_be_interpreted(kind: str, tmp_path: Path) -> None:
    for form in ("json", "text", "markdown"):
        text = outcomes(tmp_path)[f"{kind} {form}"]
        assert "this selection cannot interpret the selected request decision" in text


LIMITS = [
    pytest.param(phrase, marks=mark)
    for mark, phrases in [
        (
            contract("PKT-6"),
            ["weights and requests are not reopened", "nothing is authenticated"],
        ),
        (
            contract("PKT-50"),
            ["does not prove that the capture's fence and lifetime code was right"],
        ),
        (contract("PKT-54"), ["an independent FP32 calculation, not exact real arithmetic"]),
        (
            contract("PKT-60"),
            [
                "last-row check can find a mismatched selected write",
                "identical gather and decode layout faults, or earlier missing history, need an "
                "independently captured incoming-KV mirror",
                "Cross-backend tensor identity and same-input native operator replay are separate",
                "diagnostic only",
                "certifies no operator replay, full-history storage, token equality or release",
            ],
        ),
        (
            contract("PKT-65"),
            ["the packet says nothing about the probe executable, which the run evidence"],
        ),
    ]
    for phrase in phrases
]


@pytest.mark.parametrize("phrase", LIMITS)
def test_limitation_stands_in_every_report(phrase: str, tmp_path: Path) -> None:
    assert phrase in " ".join(LIMITATIONS)
    for name, text in outcomes(tmp_path).items():
        assert all(limit in text for limit in LIMITATIONS), name


@contract("PKT-6")
def test_changed_identity_changes_only_what_is_declared(tmp_path: Path) -> None:
    builder = example()
    builder.packet["identity"]["artifactSHA256"] = "f" * 64
    analysis = run(builder, tmp_path).analysis
    assert analysis.status == "analyzed"
    assert analysis.identity is not None
    assert analysis.identity.artifact_sha256 == "f" * 64


@contract("PKT-65")
def test_packet_has_no_place_for_the_probe(tmp_path: Path) -> None:
    builder = example()
    builder.packet["identity"]["probeSHA256"] = "f" * 64
    assert run(builder, tmp_path).exit_code == 2


@contract("PKT-62")
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder"])
def test_existing_output_is_left_unchanged(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = example().write(tmp_path / "packet")
    monkeypatch.setattr("cke.attention_packet.__main__.analyze", None)
    output, kept = tmp_path / "report.json", tmp_path / "kept.json"
    if kind != "dangling link":
        kept.write_text("mine")
    match kind:
        case "file":
            output.write_text("mine")
        case "folder":
            output.mkdir()
        case _:
            output.symlink_to(kept)
    assert main([str(path), "--output", str(output)]) == 2
    assert "expected a report that does not exist yet" in capsys.readouterr().err
    if kind == "folder":
        assert list(output.iterdir()) == []
    elif kind != "dangling link":
        assert output.read_text() == "mine"
    assert kept.exists() == (kind != "dangling link")


@contract("PKT-62")
def test_output_that_appears_meanwhile_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.attention_packet import __main__ as command

    path = example().write(tmp_path / "packet")
    output = tmp_path / "report.json"
    real = command.analyze

    def slow(*arguments):
        output.write_text("mine")
        return real(*arguments)

    monkeypatch.setattr(command, "analyze", slow)
    assert main([str(path), "--output", str(output)]) == 2
    assert output.read_text() == "mine"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["packet", "report.json"]


def test_output_in_no_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = example().write(tmp_path / "packet")
    assert main([str(path), "--output", str(tmp_path / "none/report.json")]) == 2
    assert "CKE845" in capsys.readouterr().err


def test_analyzer_imports_numpy_and_msgspec_alone(tmp_path: Path) -> None:
    path = example().write(tmp_path / "packet")
    script = f"""
import sys
from cke.attention_packet.__main__ import main
assert main([{str(path)!r}, "--output", {str(tmp_path / "report.json")!r}]) == 0
import cke.attention_packet.markdown
optional = {{"_distutils_hack", "typing_extensions", "sitecustomize"}}
allowed = {{"cke", "numpy", "msgspec", "__main__"}} | optional
roots = {{name.partition(".")[0] for name in sys.modules}}
foreign = roots - allowed - set(sys.stdlib_module_names)
print(sorted(name for name in foreign if not name.startswith("__editable__")))
parts = [name.split(".") for name in sys.modules]
print(sorted({{part[1] for part in parts if part[0] == "cke" and len(part) > 1}}))
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "src", "PATH": ""},
    )
    assert result.stdout.splitlines() == ["[]", "['attention_packet', 'errors', 'schemas']"]
