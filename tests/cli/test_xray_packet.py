"""A faulty attention, from X-Ray to a packet by the command it prints, and back as evidence."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from cke.api.diagnosis import read_second
from cke.cli import main
from cke.kernel_registry.kernels import sdpa
from cke.schemas.diagnosis import PacketEvidence
from tests.models import TinyModel

contract = pytest.mark.contract
pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow]


@pytest.fixture
def wrong_scale(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention scores of every program are a twentieth too large."""
    real = sdpa.scores_of

    def scores(q: Any, k: Any, scale: Any, *rest: Any) -> Any:
        return real(q, k, scale * 1.05, *rest)

    jax.clear_caches()
    monkeypatch.setattr(sdpa, "scores_of", scores)
    yield
    monkeypatch.undo()
    jax.clear_caches()


@contract("PKT-68")
def test_faulty_attention_is_exported_as_printed_and_taken_as_evidence(
    wrong_scale: None, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["xray", "--model", str(tiny_model("llama")), "--oracle", "reference", "--steps", "5"]
    words += ["--out", str(out)]
    assert main(words) == 1
    shown = capsys.readouterr().out
    found, _ = read_second(out / "report.json")
    assert found.first_divergence is not None
    assert found.first_divergence.failure_class == "ATTENTION_ARITHMETIC_DIVERGENCE"
    assert isinstance(found.packet_export, str)
    command = shlex.split(found.packet_export)
    printed = shown[shown.index("\npacket ") :].replace("\\\n", " ").splitlines()[1]
    assert shlex.split(printed)[1:] == command

    assert main(command[1:]) == 0
    snapshot = json.loads((out / "packet/attention-metadata.json").read_text())
    assert snapshot["seedToken"] == 5

    packet = out / "packet/packet.json"
    assert main([*words, "--packet", str(packet)]) == 1
    report, _ = read_second(out / "report.json")
    evidence = report.packet
    assert isinstance(evidence, PacketEvidence)
    assert evidence.identical == ("queries", "storedKeys", "storedValues", "output")
    assert (evidence.layer, evidence.segment, evidence.within) == (0, 1, False)
    assert report.first_divergence is not None
    assert report.first_divergence.because[-1].startswith(f"packet {evidence.packet_sha256[:12]}")
    assert report.packet_export is None
    assert f"--packet {packet}" in report.reproduce
    page = (out / "report.md").read_text()
    assert all(limitation in page for limitation in evidence.limitations)


@contract("PKT-68")
def test_packet_that_is_no_evidence_is_refused_before_anything_runs(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["packet", "export", "--model", str(tiny_model("llama")), "--tokens", "1 2 3"]
    assert main([*export, "--layer", "1", "--out", str(tmp_path / "packet")]) == 0
    packet = tmp_path / "packet/packet.json"
    words = ["xray", "--oracle", "reference", "--out", str(tmp_path / "out")]
    words += ["--packet", str(packet), "--model"]
    capsys.readouterr()
    assert main([*words, str(tiny_model("llama", seed=1))]) == 2
    assert "error[CKE848]: expected a packet of the loaded weights" in capsys.readouterr().err
    (tmp_path / "packet/output.bin").write_bytes(b"")
    assert main([*words, str(tiny_model("llama"))]) == 2
    assert "got one that is refused: expected 128 bytes, got 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@contract("PKT-66")
@pytest.mark.real_model
def test_a_prompt_as_text_gives_the_packet_of_its_tokens(
    smollm2_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["packet", "export", "--model", str(smollm2_gguf), "--layer", "3"]
    given = {
        "text": ["--prompt", "The capital of France is"],
        "ids": ["--tokens", "504 3575 282 4649 314"],
    }
    told = []
    for name, words in given.items():
        assert main([*export, *words, "--out", str(tmp_path / name)]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert main([*export, "--out", str(tmp_path / "none")]) == 2
    assert "expected `--tokens` or `--prompt`, and not both" in capsys.readouterr().err
