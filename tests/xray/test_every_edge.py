"""A fault at any edge of any layer is named exactly: subjects are the interpreter, perturbed."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cke.api.diagnosis import xray
from cke.runtime.records import digest
from cke.xray.graph import ProgramGraph, Site
from tests.models import TinyModel
from tests.xray.interpreted import Interpreted, Oracle, Place, diagnosed

RESULTS = {"attention.append": 2, "attention.sdpa": 3}
"""Ops with several float results; every other has one."""
OPS = (
    "attn_norm",
    "attention.q_proj",
    "attention.k_proj",
    "attention.v_proj",
    "attention.rope",
    "attention.rope.2",
    "attention.append",
    "attention.sdpa",
    "attention.o_proj",
    "add",
    "mlp_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.silu",
    "mlp.multiply",
    "mlp.down_proj",
    "add.2",
)
PLACES: list[Place] = [
    (None, "embed", 0),
    *((layer, op, at) for layer in range(4) for op in OPS for at in range(RESULTS.get(op, 1))),
    (None, "final", 0),
    (None, "head", 0),
]
SAMPLE: tuple[Place, ...] = (
    (2, "attention.k_proj", 0),
    (3, "attention.sdpa", 1),
    (1, "attention.append", 1),
)


@pytest.mark.contract("XRAY-16")
@pytest.mark.slow
def test_the_places_are_every_float_edge_of_the_model(
    sides: tuple[Interpreted, Oracle],
) -> None:
    for phase in ("prefill", "decode"):
        graph = ProgramGraph(sides[0].manifest, phase)
        assert PLACES == [
            (graph.steps[step].layer, op.id, at)
            for step, op in graph.ops()
            for at, edge in enumerate(op.results)
            if edge.type.dtype not in ("i32", "bool")
        ]


@pytest.mark.contract("XRAY-17")
@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [p if p in SAMPLE else pytest.param(p, marks=pytest.mark.nightly) for p in PLACES],
    ids=lambda p: f"{p[0]}-{p[1]}-{p[2]}",
)
def test_a_fault_at_an_edge_is_named_exactly(
    place: Place, sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = diagnosed(sides, (place,), tmp_path / "rounds")
    found = report.first_divergence
    assert found is not None
    assert (found.layer, found.op) == place[:2]
    graph = ProgramGraph(sides[0].manifest, "prefill")
    step = next(
        index
        for index, item in enumerate(graph.steps)
        if item.layer == place[0] and any(op.id == place[1] for op in graph.function(index).ops)
    )
    op = next(op for op in graph.function(step).ops if op.id == place[1])
    assert (found.checkpoint_id, found.role) in graph.points_of(
        Site(step, op.results[place[2]].name)
    )
    expected = "STATE_CACHE_DIVERGENCE" if "append" in place[1] else "COMPILED_PROGRAM_DIVERGENCE"
    assert found.failure_class == expected


@pytest.mark.contract("XRAY-17")
@pytest.mark.contract("XRAY-58")
@pytest.mark.slow
def test_of_two_faults_the_earlier_is_named_and_the_later_after_the_fix(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    early, late = (1, "mlp.up_proj", 0), (3, "attention.rope", 0)
    both = diagnosed(sides, (early, late), tmp_path / "rounds")
    fixed = diagnosed(sides, (late,), tmp_path / "rounds")
    assert both.first_divergence is not None
    assert fixed.first_divergence is not None
    assert (both.first_divergence.layer, both.first_divergence.op) == early[:2]
    assert (fixed.first_divergence.layer, fixed.first_divergence.op) == late[:2]
    sparse, inner = both.rounds
    assert sparse.edges is not None
    assert not any("mlp." in name or "attention." in name for name in sparse.edges)
    assert inner.layers == (1,)
    assert sparse.subject_tensors < inner.subject_tensors


@pytest.mark.contract("XRAY-4")
@pytest.mark.contract("XRAY-16")
@pytest.mark.contract("XRAY-15")
@pytest.mark.slow
def test_without_a_fault_every_edge_of_every_layer_was_compared(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = diagnosed(sides, (), tmp_path / "rounds")
    assert (report.status, report.verdict) == ("complete", "pass_within_gate")
    assert report.coverage.ops_with_edges == report.coverage.ops_total
    assert report.coverage.edges_compared == report.coverage.edges_total
    assert report.coverage.ops_without_edges == ()
    assert {row.check for row in report.rankings} == {"mixed_prefill", "teacher_forced"}


@pytest.mark.contract("XRAY-13")
@pytest.mark.slow
def test_what_follows_the_layers_is_held_to_a_budget_of_all_of_them(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = diagnosed(sides, (), tmp_path / "rounds")
    budgets = {(point.segment, point.checkpoint_id): point.budget for point in report.points}
    last = max(item.layer or 0 for item in report.circuit)
    for segment in range(2):
        end = budgets[segment, f"layer.{last}.layer_output"]
        final = budgets[segment, "final_norm"]
        assert final is not None
        assert end is not None
        assert budgets[segment, "embedding"] != end
        assert 0.5 * end < final


@pytest.mark.contract("XRAY-36")
def test_declared_metadata_stops_before_either_side_runs(
    sides: tuple[Interpreted, Oracle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, oracle = sides

    def never(*_: object) -> None:
        raise AssertionError("a side ran")

    monkeypatch.setattr(Interpreted, "capture", never)
    monkeypatch.setattr(oracle, "name", "pytorch")
    monkeypatch.setattr(oracle, "dtype", "bf16")
    report = diagnosed((subject, oracle), (), tmp_path / "rounds")
    assert report.status == "stopped"
    assert report.verdict is None
    assert report.points == ()
    assert report.first_divergence is not None
    assert report.first_divergence.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"


@pytest.mark.contract("XRAY-1")
@pytest.mark.contract("XRAY-6")
@pytest.mark.contract("XRAY-18")
@pytest.mark.contract("XRAY-53")
@pytest.mark.slow
def test_a_report_carries_verdict_owner_policy_and_the_order_of_fixing(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = diagnosed(sides, ((2, "mlp.down_proj", 0),), tmp_path / "rounds")
    flipped = any(ranking.flips for ranking in report.rankings)
    assert report.verdict == ("behavioral_divergence" if flipped else "cosmetic_drift")
    assert report.architecture_policy["owner"] == "compiler"
    assert "deterministic consumers" in report.architecture_policy["rule"]
    assert report.fix_progression[0].startswith("execution policy")
    states = [stage.state for stage in report.stages]
    assert states.count("broken") == 1
    assert states[states.index("broken") + 1 :] == ["not_reached"]
    assert report.first_over_gate is not None
    assert report.points[report.first_over_gate].checkpoint_id.startswith("layer.2.")


def _noise(array: Any) -> Any:
    return 0.1 * np.random.default_rng(0).standard_normal(array.shape)


@pytest.mark.contract("XRAY-8")
@pytest.mark.oracle_torch
@pytest.mark.slow
def test_an_export_that_the_oracle_did_not_go_on_with_is_the_adapters(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cke.oracles.pytorch import PyTorchOracle

    kept = PyTorchOracle.capture

    def lying(oracle: Any, request: Any, sink: Any) -> Any:
        class Sink:
            def add(self, record: Any, array: Any) -> None:
                if record.checkpoint_id == "layer.1.mlp_norm_output":
                    array = (array + _noise(array)).astype(array.dtype)
                    record = msgspec.structs.replace(record, sha256=digest(array))
                sink.add(record, array)

        return kept(oracle, request, Sink())

    monkeypatch.setattr(PyTorchOracle, "capture", lying)
    found = xray(tiny_model("llama"), oracle="pytorch", out=tmp_path).first_divergence
    assert found is not None
    assert found.checkpoint_id == "layer.1.mlp_norm_output"
    assert found.failure_class == "DIAGNOSTIC_EXPORT_MAPPING"
    assert found.fix_owner == "reference_adapter"


@pytest.mark.contract("XRAY-20")
@pytest.mark.oracle_torch
@pytest.mark.slow
def test_a_fault_that_nothing_explains_is_a_question_that_names_no_oracle_that_cannot_run(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from cke.oracles import pytorch

    plain = pytorch.load_model

    def other(path: Path, dtype: str) -> Any:
        model = plain(path, dtype)
        norm = model.model.layers[1].post_attention_layernorm
        norm.register_forward_hook(
            lambda module, arguments, result: result + torch.tensor(_noise(result)).to(result.dtype)
        )
        return model

    monkeypatch.setattr(pytorch, "load_model", other)
    report = xray(tiny_model("phi3"), oracle="pytorch", out=tmp_path)
    found = report.first_divergence
    assert found is not None
    assert report.status == "incomplete"
    assert found.checkpoint_id == "layer.1.mlp_norm_output"
    assert found.failure_class is None
    assert found.fix_owner is None
    assert report.next_probe is not None
    assert f"--oracle TRACE_DIR --out {tmp_path}/second-recorded" in report.next_probe.command
    assert report.next_probe.question.endswith(
        "; no other oracle at hand runs this model: record one where it can run"
    )
