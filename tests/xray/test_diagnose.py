"""Whole diagnoses of tiny models: faults in circuits are named, clean models are not."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from cke.api import load
from cke.api.diagnosis import xray
from cke.api.evidence import subject_trace
from cke.runtime.schedule import CaptureRequest
from tests.models import TinyModel
from tests.xray.faults import FAULTS, edited
from tests.xray.matrix import ENCODERS

pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly
SMALL = ("rope-base", "window", "gate-and-up", "keys-and-values", "norm-epsilon")
# Random weights give small scores: a cap that they never reach is no fault that one could see.
CONFIGS: dict[str, dict[str, object]] = {"gemma2": {"attn_logit_softcapping": 0.25}}


def _named(name: str) -> object:
    return name if name in SMALL else pytest.param(name, marks=pytest.mark.nightly)


@pytest.mark.contract("XRAY-19")
@pytest.mark.contract("XRAY-59")
@pytest.mark.parametrize("name", [_named(name) for name in FAULTS])
def test_a_fault_in_a_circuit_is_named_and_confirmed(
    name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    report = xray(
        tiny_model(fault.family, **CONFIGS.get(fault.family, {})),
        oracle="pytorch",
        circuit=edited(fault, tmp_path / "circuits"),
        out=tmp_path / "out",
        forced=() if fault.family in ENCODERS else ((5,), (9,)),
    )
    found = report.first_divergence
    assert found is not None
    assert found.checkpoint_id == fault.checkpoint_id
    assert found.failure_class == fault.failure_class
    assert found.fix_owner == "circuit"
    assert found.confirmed_by is not None
    assert found.confirmed_by.what == fault.changed
    assert found.confirmed_by.after < found.confirmed_by.before
    if fault.read is not None:
        assert (found.confirmed_by.old, found.confirmed_by.new) == fault.read
    assert report.status == "complete"


@pytest.mark.contract("XRAY-17")
def test_a_fault_that_the_first_layers_result_hides_is_named_in_the_first_layer(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS["rope-base"]
    folder = shutil.copytree(tiny_model(fault.family), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"] *= 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    circuit = edited(fault, tmp_path / "circuits")
    report = xray(folder, oracle="pytorch", circuit=circuit, out=tmp_path / "out")
    assert report.first_divergence is not None
    assert report.first_divergence.checkpoint_id == fault.checkpoint_id
    assert [item.purpose for item in report.rounds[1:]] == [
        "the edges of `layer.1`",
        "`attention.rope_query_output` of the layers before",
    ]
    assert report.rounds[2].layers == (0,)


SMALL_BASE = "100.0"
"""Over 12 tokens a base of 12345 turns the queries by 1.6%, a fifth of what bf16 may round."""
BF16 = ("gate-and-up", "rope-base", "rope-pairing", "attention-scale", "keys-and-values")


@pytest.mark.contract("XRAY-13")
@pytest.mark.parametrize(
    "name", [name if name == BF16[0] else pytest.param(name, marks=NIGHTLY) for name in BF16]
)
def test_a_fault_of_a_bf16_run_is_named_against_a_budget_of_bf16(
    name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    if name == "rope-base":
        fault = fault._replace(new=fault.new.replace("12345.0", SMALL_BASE))
    report = xray(
        tiny_model(fault.family),
        oracle="pytorch",
        dtype="bfloat16",
        circuit=edited(fault, tmp_path / "circuits"),
        out=tmp_path / "out",
        forced=((5,), (9,)),
    )
    found = report.first_divergence
    assert found is not None
    assert (found.checkpoint_id, found.failure_class) == (fault.checkpoint_id, fault.failure_class)
    assert found.fix_owner == "circuit"
    assert found.confirmed_by is not None
    assert found.confirmed_by.what == fault.changed
    assert found.gate is not None
    assert found.gate.relative_rmse >= 2.0**-8
    assert report.stages[3].state == "passed"


ORDERS = {
    "activation-of-the-product": (
        "multiply(silu(mlp.gate), mlp.up)",
        "silu(multiply(mlp.gate, mlp.up))",
    ),
    "gate-after-the-norm": (
        "rms_norm(multiply(mix.y, mix.y.2))",
        "multiply(rms_norm(mix.y), mix.y.2)",
    ),
    "norm-of-the-sum": ("add(x, rms_norm(attention.return))", "rms_norm(add(x, attention.return))"),
}


@pytest.mark.contract("XRAY-19")
@pytest.mark.parametrize("name", ORDERS)
def test_what_the_oracle_applies_to_both_is_named_by_its_order(
    name: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    model, circuit = tiny_model(fault.family), edited(fault, tmp_path / "circuits")
    request = CaptureRequest(tokens=((3, 9, 4, 1, 7),))
    subject_trace(load(model, circuit), request, tmp_path / "oracle")
    report = xray(
        model, oracle=str(tmp_path / "oracle"), out=tmp_path / "out", tokens=request.tokens
    )
    found = report.first_divergence
    assert found is not None
    assert (found.checkpoint_id, found.failure_class) == (
        fault.checkpoint_id,
        fault.failure_class,
    )
    assert found.confirmed_by is not None
    assert (found.confirmed_by.old, found.confirmed_by.new) == ORDERS[name]
