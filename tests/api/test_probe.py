"""The probe packet of a model: every run a trace, every cell accounted for."""

from pathlib import Path

import msgspec
import pytest

from cke.api import probe
from cke.api.probe import PACKET, probe_model
from cke.errors import CkeError
from cke.runtime.trace_reader import read_trace
from cke.schemas.probe import ProbePacket
from tests.models import TinyModel


@pytest.mark.slow
@pytest.mark.oracle_torch
@pytest.mark.contract("XRAY-21")
def test_a_packet_holds_a_trace_for_each_run_and_says_what_was_covered(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive = probe.derive_probes
    monkeypatch.setattr(probe, "derive_probes", lambda *given: derive(*given)[:2])
    folder = tiny_model("mixtral", num_hidden_layers=1)
    packet = probe_model(
        folder, tmp_path / "packet", dtypes=("float32",), oracle="pytorch", max_tokens=32
    )
    kept = msgspec.json.decode((tmp_path / "packet" / PACKET).read_bytes(), type=ProbePacket)
    assert kept == packet
    assert packet.special_tokens == (1, 2)
    assert {run.verdict for run in packet.runs} == {"pass_within_gate"}
    assert {run.neutrality for run in packet.runs} == {"neutral"}
    for run in packet.runs:
        trace = read_trace(tmp_path / "packet" / run.trace).trace
        assert trace.body_sha256 == run.trace_sha256
        assert len(trace.body.records) == run.records > 0
    names = {run.name for run in packet.runs}
    assert {cell.run for cell in packet.cells if cell.run} <= names
    covered = [cell for cell in packet.cells if cell.run]
    assert {cell.position for cell in covered} == {"zero"}
    assert {cell.execution for cell in covered} >= {"prefill", "decode", "chunked_prefill"}
    assert all(0 < found <= total == 4 for found, total in packet.experts.values())


def test_a_packet_is_never_written_over_another(tmp_path: Path) -> None:
    with pytest.raises(CkeError, match="CKE702"):
        probe_model(tmp_path, tmp_path)
