"""A declined diagnosis names a probe, and running the probe decides."""

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cke.cli import main
from cke.schemas.diagnosis import Diagnosis, Document
from tests.models import TinyModel
from tests.xray.faults import FAULTS, edited

pytestmark = [pytest.mark.oracle_torch, pytest.mark.oracle_llamacpp, pytest.mark.slow]


def _report(out: Path) -> Diagnosis:
    return msgspec.json.decode((out / "report.json").read_bytes(), type=Document).body


TOKENS = "7 3 11 5 2 9"


def _run(command: str) -> None:
    for part in command.split("; "):
        words = shlex.split(part)
        assert words[0] == "cke"
        main(words[1:])


@pytest.mark.contract("XRAY-20")
@pytest.mark.contract("XRAY-35")
def test_the_probe_of_a_question_decides_it_when_it_is_run(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.oracles import pytorch

    plain = pytorch.load_model

    def uneven(path: Path, dtype: str) -> Any:
        model = plain(path, dtype)
        norm = model.model.layers[1].post_attention_layernorm
        norm.register_forward_hook(lambda module, given, made: made + 0.1 * made.sin().cos())
        return model

    monkeypatch.setattr(pytorch, "load_model", uneven)
    model, out = tiny_model("llama"), tmp_path / "out"
    _run(f"cke xray --model {model} --oracle pytorch --tokens '{TOKENS}' --out {out}")
    asked = _report(out)
    assert asked.status == "incomplete"
    assert asked.next_probe is not None
    _run(asked.next_probe.command)
    found = _report(out).first_divergence
    assert found is not None
    assert found.checkpoint_id == "layer.1.mlp_norm_output"
    assert (found.failure_class, found.fix_owner) == ("REFERENCE_DEFECT", "reference_adapter")
    assert _report(out).status == "complete"


@pytest.mark.contract("XRAY-20")
def test_two_oracles_that_agree_lay_an_unexplained_edge_on_the_circuit(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS["rope-base"]
    two = "q = rope(q, positions, freqs, base: 777.0, width: rotary, pairing: interleaved"
    whole = "q = rope(q, positions, freqs, base: theta, width: rotary, pairing: pairing"
    fault = fault._replace(old=whole, new=two)
    circuit = edited(fault, tmp_path / "circuits")
    model, out = tiny_model("llama"), tmp_path / "out"
    _run(
        f"cke xray --model {model} --circuit {circuit} --oracle pytorch --tokens '{TOKENS}' "
        f"--out {out}"
    )
    asked = _report(out)
    assert asked.first_divergence is not None
    assert asked.first_divergence.failure_class is None
    assert asked.next_probe is not None
    _run(asked.next_probe.command)
    found = _report(out).first_divergence
    assert found is not None
    assert found.checkpoint_id == fault.checkpoint_id
    assert (found.failure_class, found.fix_owner) == (fault.failure_class, "circuit")
