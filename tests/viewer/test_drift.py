"""The drift curve draws what the report states."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from cke.runtime.schedule import CaptureRequest
from cke.schemas.numerical_report import Report
from cke.viewer import drift
from cke.viewer.drift import draw_drift
from cke.xray.diff import diff_traces
from tests.xray.synthetic import write_trace

REQUEST = CaptureRequest(tokens=((1, 2),), forced=((3,),))
STEPS = ("embedding", *(f"layer.{i}.{name}" for i in range(3) for name in ("x", "layer_output")))
ERRORS = (0.0, 1e-6, 5e-6, 2e-6, 0.0, 4e-6, 4e-6)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    def values(scale: float) -> list:
        found = []
        for segment, width in enumerate((2, 1)):
            for name, error in zip(STEPS, ERRORS, strict=True):
                array = np.ones((1, width, 4), np.float32) + np.float32(scale * error)
                found.append((name, ("B", "T", "D"), array, "", segment))
            logits = np.eye(4, dtype=np.float32)[None, :width]
            if segment and scale:
                logits = logits[..., ::-1].copy()
            found.append(("logits", ("B", "T", "V"), logits, "", segment))
        return found

    subject = write_trace(tmp_path / "subject", REQUEST, values(0))
    return diff_traces(subject, write_trace(tmp_path / "oracle", REQUEST, values(1)))


def _curves(svg: str) -> list[str]:
    return re.findall(r'<polyline points="([^"]*)"[^>]*stroke="#1f6feb"', svg)


@pytest.mark.contract("XRAY-47")
def test_every_mark_of_the_report_is_drawn(report: Report) -> None:
    svg = draw_drift(report)
    ElementTree.fromstring(svg)
    jumps = next(curve.jumps for curve in report.curves if curve.metric == "max_abs")
    assert jumps
    assert svg.count("#8250df") == len(jumps) + 1
    assert "first non-exact: layer.0.x" in svg
    assert report.first_flip == (1, 0, 0)
    assert "first top-1 flip: logits" in svg
    assert 'height="4" fill="#2da44e"' in svg


def test_an_error_of_zero_breaks_the_curve_and_so_does_a_new_forward(report: Report) -> None:
    assert [len(points.split()) for points in _curves(draw_drift(report))] == [3, 2, 3, 3]


def test_a_report_of_several_forwards_says_where_each_begins(report: Report) -> None:
    svg = draw_drift(report)
    assert ">prefill 0</text>" in svg
    assert ">decode 1</text>" in svg


def test_a_long_report_shows_its_residual_stream(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(_curves(draw_drift(report)))
    monkeypatch.setattr(drift, "LONG", 4)
    svg = draw_drift(report)
    assert "bold: residual stream" in svg
    assert len(_curves(svg)) > before
