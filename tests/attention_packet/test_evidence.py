"""A packet enters X-Ray as a measurement with its limitations, or not at all."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from cke.attention_packet.evidence import read_measurement
from cke.errors import CkeError
from tests.attention_packet.build import PacketBuilder, example, random_values, run, values_packet

contract = pytest.mark.contract


@contract("PKT-68")
@pytest.mark.parametrize("error", [0.0, 100.0])
def test_measurement_carries_numbers_and_limitations_and_no_decision(
    error: float, tmp_path: Path
) -> None:
    q, k, v = random_values()
    builder = values_packet(q, k, v, np.full_like(q, error) if error else None)
    analysis = run(builder, tmp_path).analysis
    found = read_measurement(analysis)
    assert found.limitations == analysis.limitations
    assert analysis.original_query_reference is not None
    assert found.comparison == analysis.original_query_reference.comparison
    assert found.packet_sha256 == analysis.packet_sha256
    assert set(found.tensor_sha256) == set(builder.tensors)
    assert (found.model_layer_index, found.position, found.reduction_length) == (5, 2, 3)
    keys = set(msgspec.to_builtins(found))
    assert not keys & {"verdict", "threshold", "decision", "confidence", "finding", "status"}


def unsupported() -> PacketBuilder:
    builder = example()
    builder.record["softcapPresent"] = True
    return builder


def unconfirmed() -> PacketBuilder:
    builder = example()
    builder.snapshot["sampleOutcome"] = "discarded"
    return builder


def mismatched() -> PacketBuilder:
    builder = example()
    builder.payloads["output"] = builder.payloads["output"] | np.uint32(0x7F80_0000)
    import hashlib

    raw = builder.payloads["output"].tobytes()
    builder.tensors["output"]["sha256"] = hashlib.sha256(raw).hexdigest()
    return builder


def malformed() -> PacketBuilder:
    builder = example()
    del builder.tensors["output"]
    return builder


@contract("PKT-68")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (unsupported, "inconclusive: a softcap is present"),
        (unconfirmed, "inconclusive: selected step is not complete and confirmed"),
        (mismatched, "inconclusive: nonfinite output or FP32 reference"),
        (malformed, "refused: object missing required field `output`"),
    ],
)
def test_inconclusive_packet_is_no_evidence(make, said: str, tmp_path: Path) -> None:
    analysis = run(make(), tmp_path).analysis
    with pytest.raises(CkeError) as caught:
        read_measurement(analysis)
    assert str(caught.value) == (
        f"error[CKE848]: expected an analyzed packet as evidence, got one that is {said}\n"
        "  help: give a packet of this model that `cke packet analyze` reports as analyzed"
    )
