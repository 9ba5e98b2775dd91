"""A trace of a real run, checked in: `cke trace` on the trained Llama `addformer`, one decode step.

It verifies as it stands. Everything else here is that trace with one thing wrong.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cke.errors import CkeError, MissingInputError, RejectedError
from cke.runtime.records import digest, summarise
from cke.runtime.trace_reader import read_trace
from cke.runtime.trace_writer import body_sha256
from cke.runtime.validity import valid_mask
from cke.schemas.trace import Body
from cke.xray.diff import diff_traces

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def trace(repository: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repository / "tests/fixtures/trace_addformer", tmp_path / "trace"))


def _edit(folder: Path, edit: Edit) -> None:
    """Change the document and hash it anew, as a forger would."""
    path = folder / "trace.json"
    document = json.loads(path.read_text())
    edit(document["body"])
    document["body_sha256"] = body_sha256(msgspec.convert(document["body"], Body))
    path.write_text(json.dumps(document))


@pytest.mark.contract("XRAY-23")
@pytest.mark.contract("XRAY-55")
def test_the_trace_of_a_real_run_verifies(trace: Path) -> None:
    folder = read_trace(trace)
    body = folder.trace.body
    assert body.neutrality.status == "neutral"
    assert len(body.records) == 66 == body.edges_total * len(body.segments)
    for record in body.records:
        values = folder.array(record, digest)
        mask = valid_mask(record.axes, record.shape, body.segments[record.segment])
        expected = summarise(values, mask)
        assert (record.summary.min, record.summary.max) == (expected.min, expected.max)
        assert record.summary.l2 == pytest.approx(expected.l2, rel=1e-9)
        assert record.dtype in ("fp32", "i32")
        assert record.tensor_path is not None
        assert record.tensor_path.startswith("tensors.safetensors#")


@pytest.mark.contract("XRAY-55")
def test_the_append_is_a_checkpoint_with_roles(trace: Path) -> None:
    found = {
        record.role
        for record in read_trace(trace).trace.body.records
        if record.checkpoint_id == "layer.0.attention.kv_append"
    }
    assert found == {"new_key", "new_value", "stored_key", "stored_value"}


@pytest.mark.contract("XRAY-24")
@pytest.mark.contract("XRAY-54")
def test_each_forward_has_its_schedule_and_kernels(trace: Path) -> None:
    body = read_trace(trace).trace.body
    prompt, step = body.segments
    assert (prompt.phase, prompt.cache_action, prompt.append_index) == ("prefill", "reset", (0,))
    assert (step.phase, step.cache_action, step.append_index) == ("decode", "append", (5,))
    assert (prompt.positions, step.positions) == (((0, 1, 2, 3, 4),), ((5,),))
    for segment in body.segments:
        assert segment.teacher_forced
        for batch in segment.kernel_batches:
            assert batch.calls > 0
            assert batch.effective_contract_id == batch.numerical_contract_id
    assert body.cache_layout is not None
    assert (body.cache_layout.token_stride, body.cache_layout.head_stride) == (8, 4)


def test_a_truncated_tensor_file_is_refused(trace: Path) -> None:
    file = trace / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(RejectedError, match=r"records\[\d+\]\.tensor_path`: error\[CKE707\]"):
        read_trace(trace)


def test_a_truncated_document_is_refused(trace: Path) -> None:
    file = trace / "trace.json"
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(CkeError, match=r"trace.json: `\$`: error\[CKE802\]: expected JSON"):
        read_trace(trace)


def test_an_edited_document_is_refused(trace: Path) -> None:
    file = trace / "trace.json"
    file.write_text(file.read_text().replace('"threads": 2', '"threads": 1'))
    with pytest.raises(RejectedError, match=r"`\$\.body_sha256`: error\[CKE706\]"):
        read_trace(trace)


def _swap(body: dict[str, Any]) -> None:
    left, right = body["records"][2], body["records"][15]
    assert left["shape"] == right["shape"]
    left["tensor_path"], right["tensor_path"] = right["tensor_path"], left["tensor_path"]


@pytest.mark.contract("XRAY-23")
def test_swapped_tensors_are_refused_when_they_are_opened(trace: Path) -> None:
    _edit(trace, _swap)
    folder = read_trace(trace)
    with pytest.raises(RejectedError, match=r"`\$\.body\.records\[2\]\.sha256`: error\[CKE709\]"):
        folder.array(folder.trace.body.records[2], digest)
    with pytest.raises(RejectedError, match="CKE709"):
        diff_traces(folder, folder)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda body: body["records"][3].update(tensor_path=None), "records[3].tensor_path"),
        (lambda body: body["records"][3].update(level="summary"), "records[3].tensor_path"),
        (lambda body: body["records"][3].update(sha256=None), "records[3].sha256"),
        (
            lambda body: body["records"][3].update(tensor_path="tensors.safetensors#0/none"),
            "records[3].tensor_path",
        ),
    ],
)
def test_a_record_without_what_its_level_promises_is_refused(
    trace: Path, edit: Edit, path: str
) -> None:
    _edit(trace, edit)
    with pytest.raises(RejectedError) as caught:
        read_trace(trace)
    assert f"`$.body.{path}`: error[CKE707]" in str(caught.value)


def test_a_partial_trace_is_refused(trace: Path) -> None:
    shutil.move(trace, trace.with_name("trace.partial"))
    with pytest.raises(MissingInputError, match="CKE703"):
        read_trace(trace.with_name("trace.partial"))


def test_a_trace_without_its_tensors_is_refused(trace: Path) -> None:
    (trace / "tensors.safetensors").unlink()
    with pytest.raises(RejectedError, match=r"records\[0\]\.tensor_path`: error\[CKE708\]"):
        read_trace(trace)


@pytest.mark.contract("XRAY-42")
def test_a_tensor_file_that_is_renamed_with_its_paths_changes_nothing(
    trace: Path, repository: Path
) -> None:
    original = read_trace(repository / "tests/fixtures/trace_addformer")
    before = diff_traces(original, original)
    (trace / "tensors.safetensors").rename(trace / "model_layer_9_wrong_name.bin")

    def rename(body: dict[str, Any]) -> None:
        for record in body["records"]:
            record["tensor_path"] = record["tensor_path"].replace(
                "tensors.safetensors", "model_layer_9_wrong_name.bin"
            )

    _edit(trace, rename)
    after = diff_traces(original, read_trace(trace))
    assert msgspec.structs.replace(after, oracle=before.oracle) == before
