"""Traces on disk: written as a whole, read with every statement checked."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from cke.errors import CkeError, MissingInputError, RejectedError
from cke.runtime.records import digest, record_of
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import TraceWriter, body_sha256
from cke.schemas.trace import Body, Identity, Neutrality, Producer, Segment

SEGMENT = Segment(
    index=0,
    phase="prefill",
    tokens=((1, 2),),
    positions=((0, 1),),
    cache_action="reset",
    append_index=(0,),
    cache_token_count=(2,),
    teacher_forced=True,
)


def _body() -> Body:
    return Body(
        side="oracle",
        producer=Producer(
            name="test", version="1", dtype="f32", weight_dtypes={}, settings={}, facts={}
        ),
        identity=Identity(
            model_sha256=None, family=None, circuit=None, manifest_sha256=None, tokens_sha256="0"
        ),
        segments=(SEGMENT,),
        records=(),
        cache_layout=None,
        threads=1,
        mesh={},
        environment={},
        neutrality=Neutrality(
            status="neutral", control_equal=True, outputs_equal=True, mode="x", compared_outputs=1
        ),
    )


def write(out: Path, expected: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "embedding": rng.standard_normal((1, 2, 4)).astype(np.float32),
        "final_norm": rng.standard_normal((1, 2, 4)).astype(ml_dtypes.bfloat16),
        "router_ids": np.array([[[3, 1], [0, 2]]], np.int32),
    }
    with TraceWriter(out, expected) as writer:
        for name, array in arrays.items():
            axes = ("B", "T", "D")
            record = record_of(array, name=name, layer=None, phase="prefill", segment=0, axes=axes)
            writer.add(record, array)
        writer.close(_body())
    return arrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "trace")
    return tmp_path / "trace"


def _edit(folder: Path, edit: Any, *, rehash: bool = True) -> None:
    path = folder / "trace.json"
    document = json.loads(path.read_text())
    edit(document)
    if rehash:
        body = msgspec.convert(document["body"], Body)
        document["body_sha256"] = body_sha256(body)
    path.write_text(json.dumps(document))


@pytest.mark.contract("XRAY-23")
@pytest.mark.parametrize("expected", [16, 0])
def test_a_trace_reads_back_bit_for_bit(tmp_path: Path, expected: int) -> None:
    arrays = write(tmp_path / "trace", expected)
    trace = read_trace(tmp_path / "trace")
    for record in trace.trace.body.records:
        array = trace.array(record, digest)
        original = arrays[record.checkpoint_id]
        assert array.dtype == original.dtype
        assert array.tobytes() == original.tobytes()
        assert record.sha256 == digest(original)


def test_a_trace_is_never_written_over_another(folder: Path) -> None:
    with pytest.raises(CkeError) as caught:
        TraceWriter(folder)
    assert str(caught.value) == (
        "trace: error[CKE702]: expected a folder that does not exist yet, got one that does\n"
        "  help: remove it, or choose another folder with --out"
    )


@pytest.mark.contract("XRAY-23")
def test_a_half_written_trace_is_not_read(tmp_path: Path) -> None:
    array = np.zeros((1, 2, 4), np.float32)
    record = record_of(
        array, name="a", layer=None, phase="prefill", segment=0, axes=("B", "T", "D")
    )
    with TraceWriter(tmp_path / "half") as writer:
        writer.add(record, array)
        assert not (tmp_path / "half").exists()
        with pytest.raises(MissingInputError, match="CKE703"):
            read_trace(tmp_path / "half.partial")
    with pytest.raises(MissingInputError, match="CKE703"):
        read_trace(tmp_path / "half")


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TraceWriter(tmp_path / "t"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("XRAY-25")
@pytest.mark.parametrize(
    ("edit", "rehash", "text"),
    [
        (
            lambda d: d["body"].__setitem__("threads", 2),
            False,
            "trace/trace.json: `$.body_sha256`: error[CKE706]: the body was changed",
        ),
        (
            lambda d: d["body"]["records"][1].__setitem__("extra", 1),
            False,
            "`$.body.records[1]`: error[CKE704]: object contains unknown field `extra`",
        ),
        (
            lambda d: d["body"]["segments"][0].__setitem__("phase", "warmup"),
            False,
            "`$.body.segments[0].phase`: error[CKE704]: invalid enum value 'warmup'",
        ),
        (
            lambda d: d["body"].pop("mesh"),
            False,
            "`$.body`: error[CKE704]: object missing required field `mesh`",
        ),
        (
            lambda d: d.__setitem__("version", 2),
            True,
            "`$.schema`: error[CKE705]: expected `cke.xray_execution_trace` version 1, got",
        ),
        (
            lambda d: d["body"]["records"][0].__setitem__("shape", [1, 4, 2]),
            True,
            "`$.body.records[0].shape`: error[CKE707]: expected F32 [1, 4, 2] as recorded",
        ),
    ],
)
def test_edited_documents_are_refused_with_their_path(
    folder: Path, edit: Any, rehash: bool, text: str
) -> None:
    _edit(folder, edit, rehash=rehash)
    with pytest.raises(RejectedError) as caught:
        read_trace(folder)
    assert text in str(caught.value)


def test_truncated_tensors_are_refused(folder: Path) -> None:
    file = folder / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RejectedError) as caught:
        read_trace(folder)
    assert str(caught.value) == (
        "trace/trace.json: `$.body.records[2].tensor_path`: error[CKE707]: "
        "`tensors.safetensors#0/router_ids`: expected data_offsets within 56 bytes of data, "
        "got 48 to 64"
    )


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", ""])
def test_a_tensor_path_stays_inside_the_folder(folder: Path, name: str) -> None:
    _edit(folder, lambda d: d["body"]["records"][0].__setitem__("tensor_path", name + "#a"))
    with pytest.raises(RejectedError, match=r"records\[0\].tensor_path`: error\[CKE708\]"):
        read_trace(folder)


def test_swapped_tensors_are_refused(folder: Path) -> None:
    file = folder / "tensors.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    trace = read_trace(folder)
    record = trace.trace.body.records[2]
    with pytest.raises(RejectedError, match=r"`\$.body.records\[2\].sha256`: error\[CKE709\]"):
        trace.array(record, digest)


@pytest.mark.contract("XRAY-42")
def test_renaming_a_tensor_file_with_its_paths_changes_nothing(folder: Path) -> None:
    before = [r.sha256 for r in read_trace(folder).trace.body.records]
    shutil.move(folder / "tensors.safetensors", folder / "other.safetensors")

    def rename(document: Any) -> None:
        for record in document["body"]["records"]:
            record["tensor_path"] = record["tensor_path"].replace("tensors.", "other.")

    _edit(folder, rename)
    after = read_trace(folder)
    assert [r.sha256 for r in after.trace.body.records] == before
    for record in after.trace.body.records:
        after.array(record, digest)
