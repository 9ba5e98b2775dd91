"""A fault of tokens, schedule or metadata is named when no tensor can be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.manifest import Manifest
from cke.schemas.trace import Body
from tests.xray.interpreted import NOBODY, Interpreted, Oracle, diagnosed

replace = msgspec.structs.replace
Sides = tuple[Interpreted, Oracle]


def _segment(body: Body, at: int, **changed: Any) -> Body:
    segments = list(body.segments)
    segments[at] = replace(segments[at], **changed)
    return replace(body, segments=tuple(segments))


def _last(body: Body, **changed: Any) -> Body:
    *before, last = body.records
    return replace(body, records=(*before, replace(last, **changed)))


def _another_model(body: Body) -> Body:
    return replace(body, identity=replace(body.identity, model_sha256="b" * 64))


def _without(body: Body) -> Body:
    kept = tuple(r for r in body.records if r.checkpoint_id != "layer.3.layer_output")
    return replace(body, records=kept)


ORACLE: dict[str, Callable[[Body], Body]] = {
    "INPUT_TOKEN_MISMATCH": lambda b: _segment(b, 0, tokens=((1, 3, 11, 5, 2, 9),)),
    "IDENTITY_MISMATCH": _another_model,
    "EXECUTION_POLICY_MISMATCH": lambda b: _segment(b, 1, cache_action="reset"),
    "POSITION_STATE_MISMATCH": lambda b: _segment(b, 1, positions=((0,),)),
    "CACHE_STATE_METADATA_MISMATCH": lambda b: _segment(b, 1, append_index=(3,)),
    "MISSING_CHECKPOINT": _without,
    "CHECKPOINT_VERSION_MISMATCH": lambda b: _last(b, version=9),
    "DIAGNOSTIC_EXPORT_MAPPING": lambda b: _last(b, dtype="i32"),
    "LAYOUT_MISMATCH": lambda b: _last(b, axes=("B", "T", "D")),
}
"""Class → what is wrong on the oracle's side: in its schedule, or at its last checkpoint."""


def _blind(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Body], Body] = lambda body: body
) -> None:
    """Take the tensors of every capture away, and change what the oracle says of its own."""
    plain = Interpreted.capture

    def capture(side: Interpreted, request: CaptureRequest, out: Path) -> TraceFolder:
        made = plain(side, request, out)
        for file in out.glob("*.safetensors"):
            file.unlink()
        body = replace(made.trace.body, identity=replace(NOBODY, model_sha256="a" * 64))
        body = change(body) if isinstance(side, Oracle) else body
        return TraceFolder(out, replace(made.trace, body=body), made._places)

    monkeypatch.setattr(Interpreted, "capture", capture)


def _stopped(report: Diagnosis, name: str) -> bool:
    found = report.first_divergence
    assert found is not None
    assert found.failure_class == name
    return (report.status, report.verdict, report.points) == ("stopped", None, ())


@pytest.mark.contract("XRAY-7")
@pytest.mark.contract("XRAY-38")
@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLE)
def test_a_fault_before_numbers_needs_no_tensor(
    name: str, sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _blind(monkeypatch, ORACLE[name])
    assert _stopped(diagnosed(sides, (), tmp_path / "rounds"), name)


@pytest.mark.slow
def test_without_such_a_fault_the_tensors_would_have_been_read(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _blind(monkeypatch)
    with pytest.raises(FileNotFoundError):
        diagnosed(sides, (), tmp_path / "rounds")


def _swapped(manifest: Manifest) -> Manifest:
    """Return a manifest whose call IR runs another kernel than was resolved."""
    data = msgspec.to_builtins(manifest)
    call = data["calls"]["programs"][0]["functions"][1]["calls"][0]
    call["kernel_id"] = call["function"] = "layer_norm"
    return msgspec.convert(data, Manifest)


@pytest.mark.contract("XRAY-8")
@pytest.mark.slow
def test_a_kernel_swapped_in_the_call_ir_is_named_before_anything_runs(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a side ran")

    monkeypatch.setattr(Interpreted, "capture", never)
    monkeypatch.setattr(sides[0], "manifest", _swapped(sides[0].manifest))
    report = diagnosed(sides, (), tmp_path / "rounds")
    assert _stopped(report, "KERNEL_BINDING_MISMATCH")
