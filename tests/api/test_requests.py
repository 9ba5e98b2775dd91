"""Encoders of images: their pixels are checked, kept in a trace, and the encoder diagnosed."""

from pathlib import Path

import numpy as np
import pytest

import cke.api
from cke.api.diagnosis import xray
from cke.api.evidence import oracle_trace, subject_trace
from cke.api.requests import default_request, pixels_request, recorded_request
from cke.cli import main
from cke.errors import CkeError, RejectedError
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import given_inputs, read_trace
from tests.models import TinyModel
from tests.xray.faults import CircuitFault, edited

pytestmark = pytest.mark.oracle_torch

POOLED = CircuitFault(
    "dinov2",
    "take(x, axis: T, at: 0)",
    "take(x, axis: T, at: 1)",
    "pooled",
    "CIRCUIT_SEMANTICS_DIVERGENCE",
    "at",
    "dinov2.circuit",
)
WRONG = np.zeros((1, 3, 28, 28), np.float32)


@pytest.fixture
def folder(tiny_model: TinyModel) -> Path:
    return tiny_model("dinov2")


def _pixels(path: Path, values: np.ndarray = WRONG) -> Path:
    np.save(path, values)
    return path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (WRONG[:, :, :14], "expected floats [images, 3, 28, 28], got float32[1, 3, 14, 28]"),
        (WRONG[0], "expected floats [images, 3, 28, 28], got float32[3, 28, 28]"),
        (WRONG[:0], "expected floats [images, 3, 28, 28], got float32[0, 3, 28, 28]"),
        (WRONG.astype(np.uint8), "expected floats [images, 3, 28, 28], got uint8[1, 3, 28, 28]"),
        (WRONG + np.nan, "expected finite pixels, got NaN or infinite ones"),
    ],
)
def test_pixels_that_do_not_fit_are_refused(
    values: np.ndarray, message: str, folder: Path, tmp_path: Path
) -> None:
    manifest = cke.api.load(folder).manifest
    with pytest.raises(CkeError) as caught:
        pixels_request(manifest, _pixels(tmp_path / "x.npy", values))
    assert f"x.npy: error[CKE717]: {message}\n" in str(caught.value)


def test_a_file_that_is_no_array_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two", a=WRONG, b=WRONG)
    manifest = cke.api.load(folder).manifest
    for name in ("text.npy", "object.npy", "two.npz"):
        with pytest.raises(CkeError, match=r"expected one array in the \.npy format"):
            pixels_request(manifest, tmp_path / name)
    with pytest.raises(CkeError, match=r"expected a \.npy file of pixels, got no file"):
        pixels_request(manifest, tmp_path / "none.npy")


def test_a_model_is_given_what_it_takes(
    folder: Path, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, out = str(_pixels(tmp_path / "x.npy")), str(tmp_path / "out")
    told = {
        ("--model", str(folder), "--tokens", "1"): "CKE701]: the model expects pixels, got tokens",
        ("--model", str(tiny_model("llama")), "--pixels", pixels): "`llama@1` takes tokens",
        ("--model", str(folder), "--tokens", "1", "--pixels", pixels): "expected one of `--tokens`",
    }
    for words, message in told.items():
        assert main(["trace", *words, "--out", out]) == 2
        assert message in capsys.readouterr().err
        assert not Path(out).exists()


def test_a_trace_keeps_its_pixels_and_answers_for_them(folder: Path, tmp_path: Path) -> None:
    model = cke.api.load(folder)
    request = default_request(model.manifest)
    subject_trace(model, request, tmp_path / "trace")
    oracle_trace(folder, "pytorch", request, tmp_path / "oracle")
    side = read_trace(tmp_path / "trace")
    assert recorded_request(side) == request
    alone = xray(folder, oracle=tmp_path / "oracle", out=tmp_path / "alone")
    assert (alone.status, alone.verdict) == ("complete", "pass_within_gate")
    stages = {stage.name: stage.checked for stage in alone.stages}
    assert stages["numbers"] == len(read_trace(tmp_path / "oracle").trace.body.records)

    other = _pixels(tmp_path / "x.npy")
    report = xray(folder, oracle=tmp_path / "oracle", pixels=other, out=tmp_path / "other")
    assert report.first_divergence is not None
    assert report.first_divergence.failure_class == "INPUT_TOKEN_MISMATCH"

    (record,) = given_inputs(side.trace.body)
    file, offset = side.place(record)
    with file.open("r+b") as stored:
        stored.seek(offset)
        stored.write(b"\xff")
    with pytest.raises(RejectedError) as caught:
        read_trace(tmp_path / "trace").array(record, digest)
    assert caught.value.diagnostics[0].path == "$.body.inputs[0].sha256"


def test_an_encoder_of_images_is_diagnosed(folder: Path, tmp_path: Path) -> None:
    circuit = edited(POOLED, tmp_path / "circuits")
    report = xray(folder, circuit=circuit, oracle="pytorch", out=tmp_path / "report")
    first = report.first_divergence
    assert first is not None
    assert (first.checkpoint_id, first.failure_class, first.fix_owner) == (
        POOLED.checkpoint_id,
        POOLED.failure_class,
        "circuit",
    )
    assert first.confirmed_by is not None
    assert first.confirmed_by.what == POOLED.changed


def test_an_operand_that_is_a_weight_is_no_value_to_replay(folder: Path, tmp_path: Path) -> None:
    swapped = POOLED._replace(old="concat(cls, x, axis: T)", new="concat(x, cls, axis: T)")
    circuit = edited(swapped, tmp_path / "circuits")
    report = xray(folder, circuit=circuit, oracle="pytorch", out=tmp_path / "report")
    assert report.first_divergence is not None
    assert report.first_divergence.checkpoint_id == "embedding"


def test_the_default_request_of_a_text_model_is_of_tokens(tiny_model: TinyModel) -> None:
    request = default_request(cke.api.load(tiny_model("llama")).manifest)
    assert request == CaptureRequest(tokens=request.tokens)
    assert len(request.tokens[0]) == 12
