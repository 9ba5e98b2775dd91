"""Any trace is an oracle, for the request that it was made of."""

from pathlib import Path

import numpy as np
import pytest

from cke.errors import RejectedError
from cke.oracles.open import open_oracle
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import TraceWriter
from tests.xray.synthetic import write_trace

REQUEST = CaptureRequest(tokens=((5, 9, 2),), forced=((3,),))
VALUES = [
    ("embedding", ("B", "T", "D"), np.ones((1, 3, 4), np.float32)),
    ("layer.0.layer_output", ("B", "T", "D"), np.zeros((1, 3, 4), np.float32)),
]


def test_a_trace_is_given_again_as_it_is(tmp_path: Path) -> None:
    side = write_trace(tmp_path / "a", REQUEST, VALUES, "oracle")
    oracle = open_oracle(str(tmp_path / "a"), tmp_path)
    with TraceWriter(tmp_path / "b") as writer:
        again = writer.close(oracle.capture(REQUEST, writer))
    assert again.body == side.trace.body
    assert again.body_sha256 == side.trace.body_sha256
    assert list(oracle.weights()) == []


def test_only_what_is_asked_for_is_given(tmp_path: Path) -> None:
    write_trace(tmp_path / "a", REQUEST, VALUES, "oracle")
    request = CaptureRequest(
        tokens=REQUEST.tokens, forced=REQUEST.forced, edges=frozenset({"layer_output"})
    )
    with TraceWriter(tmp_path / "b") as writer:
        writer.close(open_oracle(str(tmp_path / "a"), tmp_path).capture(request, writer))
    records = read_trace(tmp_path / "b").trace.body.records
    assert [record.checkpoint_id for record in records] == ["layer.0.layer_output"]


@pytest.mark.contract("XRAY-9")
@pytest.mark.parametrize(
    "request_",
    [
        CaptureRequest(tokens=((5, 9, 3),), forced=((3,),)),
        CaptureRequest(tokens=((5, 9, 2),), segments=(2, 3), forced=((3,),)),
        CaptureRequest(tokens=((5, 9, 2),)),
    ],
)
def test_a_trace_answers_for_its_own_tokens_only(request_: CaptureRequest, tmp_path: Path) -> None:
    write_trace(tmp_path / "a", REQUEST, VALUES, "oracle")
    with TraceWriter(tmp_path / "b") as writer, pytest.raises(RejectedError, match="CKE747"):
        open_oracle(str(tmp_path / "a"), tmp_path).capture(request_, writer)
