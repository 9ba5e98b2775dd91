"""An oracle that lies is caught by measurement, stage by stage, before any number counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cke.oracles.base import Array, Sink
from cke.oracles.reference_trace import ReferenceOracle
from cke.runtime.records import digest, summarise
from cke.runtime.schedule import CaptureRequest, tokens_sha256
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.trace import Body, Record
from cke.xray.diagnose import diagnose
from cke.xray.sides import Measured
from tests.xray.interpreted import NOBODY, Interpreted, Oracle

pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow, pytest.mark.contract("XRAY-8")]
# Four tokens and four heads: shapes alone cannot tell these axes apart.
REQUEST = CaptureRequest(tokens=((5, 9, 2, 7),), forced=((3,),))
OTHER = CaptureRequest(tokens=((5, 9, 8, 7),), forced=((3,),))


class Lying(Oracle):
    """The interpreter, with its request, its records or its declaration changed."""

    ran: CaptureRequest | None = None
    tell: Callable[[Record, Array], tuple[Record, Array]] | None = None
    declare: Callable[[Body], Body] = staticmethod(lambda body: body)  # type: ignore[assignment]
    process = Measured()

    def capture(self, request: CaptureRequest, out: Path) -> TraceFolder:
        asked = msgspec.structs.replace(self.ran or request, edges=request.edges)
        with TraceWriter(out) as writer:
            oracle = ReferenceOracle(self.manifest, self._exact, NOBODY)
            body = oracle.capture(asked, Retelling(writer, self.tell))
            honest = oracle.capture(request, Nowhere()) if self.ran else body
            identity = msgspec.structs.replace(body.identity, tokens_sha256=tokens_sha256(request))
            body = msgspec.structs.replace(body, segments=honest.segments, identity=identity)
            writer.close(self.declare(body))
        return read_trace(out)

    def measured(self) -> Measured:
        return self.process


class Nowhere:
    """A sink that keeps nothing."""

    def add(self, record: Record, array: Array) -> None:
        """Keep nothing."""


class Retelling:
    """A sink that changes what is said of a capture."""

    def __init__(self, sink: Sink, tell: Any) -> None:
        self.sink, self.tell = sink, tell

    def add(self, record: Record, array: Array) -> None:
        self.sink.add(*(self.tell(record, array) if self.tell else (record, array)))


def _report(sides: tuple[Interpreted, Oracle], out: Path, **lie: Any) -> Diagnosis:
    subject, honest = sides
    subject.places = ()
    oracle = Lying(honest.model)
    oracle.dtype = "f64"
    for name, value in lie.items():
        setattr(oracle, name, value)
    return diagnose(subject, oracle, REQUEST, out, reproduce="cke xray --oracle reference")


def _stopped(report: Diagnosis, failure_class: str, stage: str) -> str:
    found = report.first_divergence
    assert found is not None
    assert (found.failure_class, found.fix_owner) == (failure_class, "reference_adapter")
    assert (report.status, report.verdict, report.points) == ("stopped", None, ())
    states = {item.name: item.state for item in report.stages}
    assert (states[stage], states["numbers"]) == ("broken", "not_reached")
    return found.because[-1]


def _table(oracle: Oracle) -> Array:
    from cke.xray.graph import ProgramGraph

    (name,) = ProgramGraph(oracle.manifest, "prefill").looked_up()
    return oracle.weight(name)


def test_an_honest_oracle_is_not_accused(sides: tuple[Interpreted, Oracle], tmp_path: Path) -> None:
    process = Measured(tables=(_table(sides[1]),))
    report = _report(sides, tmp_path, process=process)
    assert (report.status, report.verdict) == ("complete", "pass_within_gate")
    assert "what the oracle states of itself" in report.stages[2].detail


def test_tokens_that_were_not_run_are_read_off_the_embedding(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    process = Measured(tables=(_table(sides[1]),))
    report = _report(sides, tmp_path, ran=OTHER, process=process)
    because = _stopped(report, "INPUT_TOKEN_MISMATCH", "binding")
    assert because.startswith("the oracle states tokens 5 9 2 7; ")
    assert because.endswith(" show 5 9 8 7")
    assert report.first_divergence.checkpoint_id == "embedding"


def test_tokens_read_off_the_subjects_own_table_are_a_question(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = _report(sides, tmp_path, ran=OTHER)
    assert report.status == "incomplete"
    assert report.first_divergence.failure_class is None
    assert report.next_probe is not None
    assert "whether the oracle ran other tokens than it states" in report.next_probe.question


def test_a_version_that_is_not_the_one_that_ran_is_another_identity(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = _report(sides, tmp_path, process=Measured(version="9.9"))
    assert _stopped(report, "IDENTITY_MISMATCH", "binding").endswith("as installed show 9.9")


def test_loaded_dtypes_are_counted(sides: tuple[Interpreted, Oracle], tmp_path: Path) -> None:
    report = _report(sides, tmp_path, process=Measured(loaded={"bfloat16": 30}))
    because = _stopped(report, "DIAGNOSTIC_EXPORT_MAPPING", "metadata")
    assert because.endswith("the loaded tensors, counted by dtype show {'bfloat16': 30}")


def _narrow(record: Record, array: Array) -> tuple[Record, Array]:
    if record.dtype != "fp64":
        return record, array
    return _retold(record, array.astype(np.float32).astype(np.float64))


def _retold(record: Record, array: Array, **changes: Any) -> tuple[Record, Array]:
    made = {"sha256": digest(array), "summary": summarise(array), **changes}
    return msgspec.structs.replace(record, **made), array


def test_values_of_a_narrow_run_told_as_wide_are_caught_by_their_bits(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    because = _stopped(
        _report(sides, tmp_path, tell=_narrow), "DIAGNOSTIC_EXPORT_MAPPING", "metadata"
    )
    assert because.startswith("the oracle states dtype fp64; the bits of ")
    assert because.endswith(" show fp32")


def _turned(record: Record, array: Array) -> tuple[Record, Array]:
    if record.checkpoint_id != "layer.1.attention.attention_scores":
        return record, array
    if record.phase == "decode":
        return record, array
    return _retold(record, np.ascontiguousarray(array.swapaxes(1, 2)))


def test_axes_told_in_another_order_are_caught_by_what_the_tensors_sum_to(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    report = _report(sides, tmp_path, tell=_turned)
    found = report.first_divergence
    assert found is not None
    assert found.checkpoint_id == "layer.1.attention.attention_scores"
    assert (found.failure_class, found.fix_owner) == (
        "DIAGNOSTIC_EXPORT_MAPPING",
        "reference_adapter",
    )
