"""A packet bears on a diagnosis by the bytes of its inputs and by X-Ray's own budget, or not."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cke
from cke.runtime.records import digest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.attention_packet import Comparison, Identity, Metrics, PacketMeasurement
from cke.schemas.diagnosis import PacketEvidence
from cke.xray.case import Case
from cke.xray.finding import Finding
from cke.xray.packets import told, weigh_packet, with_packet
from tests.models import TinyModel
from tests.xray.interpreted import REQUEST, Interpreted, Oracle

contract = pytest.mark.contract
LAYER = 1
TENSORS = {
    "queries": ("rope_query_output", None),
    "storedKeys": ("kv_append", "stored_key"),
    "storedValues": ("kv_append", "stored_value"),
    "output": ("attention_context", None),
}
CONTEXT = f"layer.{LAYER}.attention.attention_context"


@pytest.fixture(scope="module")
def case(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A case with every edge of both sides captured, without a fault."""
    model = cke.load(tiny_model("llama"))
    oracle = Oracle(model)
    oracle.dtype = "f64"
    subject = Interpreted(model)
    made = Case(subject, oracle, REQUEST, tmp_path_factory.mktemp("rounds"))
    assert made.capture("all", None, None) is None
    return made


def packet(case: Case, error: float | None = 1e-3, **changes: Any) -> PacketMeasurement:
    """The measurement of a packet of the decode forward, as the subject ran it."""
    metrics = Metrics(linf=0.1, rmse=0.1, relative_l2=error, undefined_reason=None)
    comparison = Comparison(global_=metrics, per_head=())
    found = PacketMeasurement(
        packet_sha256="ab" * 32,
        identity=Identity(
            model_id="m", artifact_sha256="0" * 64, input_sha256="0" * 64, backend="contiguous"
        ),
        model_layer_index=LAYER,
        position=6,
        dtype="float32",
        reduction_length=7,
        tensor_sha256={name: _sha(case.pairs[0][0], name) for name in TENSORS},
        comparison=comparison,
        rounded_comparison=comparison,
        limitations=("diagnostic only",),
    )
    return msgspec.structs.replace(found, **changes)


def _sha(trace: TraceFolder, name: str) -> str:
    """The hash of a tensor of forward 1 as [head, token, width], read without X-Ray's code."""
    edge, role = TENSORS[name]
    wanted = (f"layer.{LAYER}.attention.{edge}", role, 1)
    record = next(
        item
        for item in trace.trace.body.records
        if (item.checkpoint_id, item.role, item.segment) == wanted
    )
    return digest(np.ascontiguousarray(trace.array(record, digest)[0].swapaxes(0, 1)))


@contract("PKT-68")
def test_inputs_are_identical_when_their_bytes_are(case: Case) -> None:
    found = weigh_packet(case, packet(case))
    assert (found.segment, found.identical) == (1, tuple(TENSORS))
    assert found.limitations == ("diagnostic only",)
    assert "identical to forward 1: queries, storedKeys, storedValues, output" in told(found)


@contract("PKT-68")
@pytest.mark.parametrize("name", ["queries", "storedKeys", "storedValues"])
def test_packet_of_other_inputs_decides_nothing(name: str, case: Case) -> None:
    hashes = packet(case).tensor_sha256 | {name: "0" * 64}
    found = weigh_packet(case, packet(case, tensor_sha256=hashes))
    assert found.segment == 1
    assert set(TENSORS) - set(found.identical) == {name}
    assert told(found).endswith("; it decides nothing here")
    assert with_packet(case, finding(), found) == finding()


@contract("PKT-68")
@pytest.mark.parametrize("changes", [{"position": 5}, {"position": 7}, {"model_layer_index": 9}])
def test_packet_of_another_call_decides_nothing(changes: dict[str, int], case: Case) -> None:
    found = weigh_packet(case, packet(case, **changes))
    assert (found.segment, found.identical) == (None, ())
    assert "no forward of this run is its call (`--steps` adds decode steps)" in told(found)
    assert with_packet(case, finding(), found) == finding()


def test_without_captures_nothing_is_identical(case: Case, tmp_path: Path) -> None:
    fresh = Case(case.subject, case.oracle, REQUEST, tmp_path)
    assert weigh_packet(fresh, packet(case)).identical == ()


@contract("PKT-68")
@pytest.mark.parametrize(
    ("error", "within"), [(0.0, True), (1e-6, True), (1e-5, False), (1.0, False), (None, None)]
)
def test_budget_is_that_of_dtype_and_sums(
    error: float | None, within: bool | None, case: Case
) -> None:
    found = weigh_packet(case, packet(case, error))
    assert (found.within, found.relative_l2) == (within, error)
    assert found.budget.reduction == 8
    longer = weigh_packet(case, packet(case, error, reduction_length=5000)).budget
    assert longer.reduction == 5000
    assert longer.relative_rmse > found.budget.relative_rmse
    assert weigh_packet(case, packet(case, error, dtype="bfloat16")).budget.relative_rmse > 0.01


def finding(checkpoint_id: str = CONTEXT, **changes: Any) -> Finding:
    """An open finding at a checkpoint of the decode forward."""
    return Finding(
        **{
            "failure_class": None,
            "because": ("open",),
            "checkpoint_id": checkpoint_id,
            "segment": 1,
            "question": "which side is right",
            **changes,
        }
    )


@contract("PKT-68")
@pytest.mark.parametrize("edge", ["attention.attention_context", "mlp_norm_output", "layer_output"])
def test_attention_outside_its_budget_answers_an_open_question(edge: str, case: Case) -> None:
    evidence = weigh_packet(case, packet(case))
    found = with_packet(case, finding(f"layer.{LAYER}.{edge}"), evidence)
    assert found is not None
    assert found.failure_class == "ATTENTION_ARITHMETIC_DIVERGENCE"
    assert (found.owner, found.operator, found.kernel_id) == ("kernel", "sdpa", "sdpa")
    assert found.because == ("open", told(evidence))
    assert found.question is None


def _other_output(evidence: PacketEvidence) -> PacketEvidence:
    return msgspec.structs.replace(evidence, identical=evidence.identical[:3])


@contract("PKT-68")
@pytest.mark.parametrize(
    "open_",
    [
        finding(f"layer.{LAYER}.attention.rope_query_output"),
        finding(f"layer.{LAYER + 1}.attention.attention_context"),
        finding("logits"),
        finding(failure_class="KERNEL_IMPLEMENTATION_DIVERGENCE", operator="rope"),
    ],
    ids=["before", "another layer", "no layer", "classed"],
)
def test_packet_of_an_attention_says_nothing_of_other_edges(open_: Finding, case: Case) -> None:
    assert with_packet(case, open_, weigh_packet(case, packet(case))) == open_


@contract("PKT-68")
@pytest.mark.parametrize("error", [1e-7, None])
def test_error_that_is_not_outside_the_budget_answers_nothing(
    error: float | None, case: Case
) -> None:
    assert with_packet(case, finding(), weigh_packet(case, packet(case, error))) == finding()


@contract("PKT-68")
def test_output_that_the_subject_did_not_give_answers_nothing(case: Case) -> None:
    evidence = _other_output(weigh_packet(case, packet(case)))
    assert with_packet(case, finding(), evidence) == finding()
    assert with_packet(case, None, evidence) is None


@contract("PKT-68")
@pytest.mark.parametrize("error", [1e-7, 1e-3])
def test_finding_of_the_attention_keeps_its_class(error: float, case: Case) -> None:
    evidence = weigh_packet(case, packet(case, error))
    given = finding(failure_class="COMPILED_PROGRAM_DIVERGENCE", operator="sdpa")
    found = with_packet(case, given, evidence)
    assert found == msgspec.structs.replace(given, because=("open", told(evidence)))
