"""Dumps with a mapping file: read whole, or refused with the row that is wrong."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from cke.errors import CkeError, MissingInputError, RejectedError
from cke.oracles.base import Array
from cke.oracles.dumps import Dump
from cke.oracles.mapping import check_all_used, expand, read_mapping
from cke.oracles.recorded import DECLARED, DumpOracle
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import TraceWriter

HEAD = """
schema = "cke.oracle_mapping"
version = 1
layers = 2
sizes = { H = 2, E = 3 }
producer = { name = "engine", version = "0.9", dtype = "f32" }
"""
ROWS = """
[[tensor]]
checkpoint = "embedding"
file = "embed.npy"
axes = "T D"

[[tensor]]
checkpoint = "layer.{L}.attention.query_projection_output"
file = "all.safetensors"
key = "q.{L}"
axes = "B T (H E)"
"""
KNOWN = {
    ("embedding", None): ("B", "T", "D"),
    **{
        (f"layer.{i}.attention.query_projection_output", None): ("B", "T", "H", "E")
        for i in range(2)
    },
}
REQUEST = CaptureRequest(tokens=((5, 9, 2, 7),))


@pytest.fixture
def arrays() -> dict[str, Array]:
    generator = np.random.default_rng(0)
    return {
        "embed": generator.standard_normal((4, 8)).astype(np.float32),
        "q.0": generator.standard_normal((1, 4, 6)).astype(np.float32),
        "q.1": generator.standard_normal((1, 4, 6)).astype(np.float32),
    }


@pytest.fixture
def dump(arrays: dict[str, Array], tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    np.save(folder / "embed.npy", arrays["embed"])
    save_file({key: arrays[key] for key in ("q.0", "q.1")}, folder / "all.safetensors")
    return folder


def _read(dump: Path, text: str, tmp_path: Path, known: Any = None) -> TraceFolder:
    path = tmp_path / "mapping.toml"
    path.write_text(text)
    mapping = read_mapping(path)
    entries = expand(mapping, path)
    folder = Dump(dump)
    check_all_used(folder.names(), entries, mapping.ignore)
    oracle = DumpOracle(folder, entries, mapping.producer, mapping.sizes, known or KNOWN)
    with TraceWriter(tmp_path / "trace") as writer:
        writer.close(oracle.capture(REQUEST, writer))
    return read_trace(tmp_path / "trace")


@pytest.mark.contract("XRAY-8")
def test_a_mapped_dump_becomes_a_trace_of_declared_facts(
    dump: Path, arrays: dict[str, Array], tmp_path: Path
) -> None:
    side = _read(dump, HEAD + ROWS, tmp_path)
    found = {record.checkpoint_id: record for record in side.trace.body.records}
    assert found.keys() == {key for key, _ in KNOWN}
    for key in ("0", "1"):
        record = found[f"layer.{key}.attention.query_projection_output"]
        assert (record.axes, record.shape) == (("B", "T", "H", "E"), (1, 4, 2, 3))
        assert np.array_equal(side.array(record, digest).reshape(1, 4, 6), arrays[f"q.{key}"])
    assert np.array_equal(side.array(found["embedding"], digest)[0], arrays["embed"])
    producer = side.trace.body.producer
    assert (producer.name, producer.version, producer.declared) == ("engine", "0.9", DECLARED)
    assert producer.weight_dtypes == {}


@pytest.mark.parametrize("kind", ["dict", "bare", "bf16"])
def test_torch_files_are_read_without_running_code(
    kind: str, dump: Path, arrays: dict[str, Array], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    (dump / "embed.npy").unlink()
    tensor = torch.from_numpy(arrays["embed"])
    if kind == "bf16":
        tensor = tensor.to(torch.bfloat16)
    torch.save({"x": tensor} if kind == "dict" else tensor, dump / "embed.pt")
    text = (HEAD + ROWS).replace("embed.npy", "embed.pt")
    if kind == "dict":
        text = text.replace('"embed.pt"', '"embed.pt"\nkey = "x"')
    side = _read(dump, text, tmp_path)
    record = side.trace.body.records[0]
    expected = arrays["embed"] if kind != "bf16" else arrays["embed"].astype(ml_dtypes.bfloat16)
    assert np.array_equal(side.array(record, digest)[0], expected)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"cke.oracle_mapping"', '"other"', "`$.schema`: error[CKE740]: expected"),
        ("layers = 2", "depth = 2", "error[CKE740]: object contains unknown field `depth`"),
        ("layers = 2", "", "`$.tensor[1]`: error[CKE740]: `{L}` needs `layers`"),
        ('axes = "T D"', "axes = 3", "`$.tensor[0].axes`: error[CKE740]: expected `str`"),
        ("version = 1", "version = ", "`$`: error[CKE740]: expected TOML"),
        ('"embedding"', '"layer.x.y"', "`$.tensor[0].checkpoint`: error[CKE740]: expected `layer"),
        ('axes = "T D"', 'axes = "T D"\nsegment = 3', "error[CKE740]: `embedding`: expected a"),
    ],
)
def test_a_malformed_mapping_is_refused_with_its_path(
    old: str, new: str, text: str, dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(CkeError) as caught:
        _read(dump, (HEAD + ROWS).replace(old, new, 1), tmp_path)
    assert text in str(caught.value)
    assert not (tmp_path / "trace").exists()


def test_a_checkpoint_that_is_mapped_twice_is_refused(dump: Path, tmp_path: Path) -> None:
    again = ROWS + ROWS.partition("\n\n")[0]
    with pytest.raises(
        CkeError, match=r"`\$\.tensor\[2\]`: error\[CKE740\]: `embedding` is mapped"
    ):
        _read(dump, HEAD + again, tmp_path)


@pytest.mark.parametrize(("old", "new"), [("embed.npy", "none.npy"), ("q.{L}", "k.{L}")])
def test_a_tensor_that_is_not_there_is_missing_input(
    old: str, new: str, dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingInputError) as caught:
        _read(dump, (HEAD + ROWS).replace(old, new) + "\n", tmp_path, KNOWN)
    assert caught.value.exit_code == 3
    assert "error[CKE741]: no" in str(caught.value)


def test_a_tensor_that_nothing_maps_is_an_error(dump: Path, tmp_path: Path) -> None:
    np.save(dump / "mask.npy", np.ones(3, np.float32))
    with pytest.raises(
        CkeError, match=r"CKE742\]: expected every tensor .* got `mask.npy` that is"
    ):
        _read(dump, HEAD + ROWS, tmp_path)
    assert _read(dump, 'ignore = ["mask.*"]\n' + HEAD + ROWS, tmp_path).trace.body.records


def test_an_unknown_checkpoint_names_near_ones(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(CkeError) as caught:
        _read(dump, (HEAD + ROWS).replace('"embedding"', '"embeding"'), tmp_path)
    assert str(caught.value) == (
        "error[CKE743]: expected a checkpoint of the circuit, got `embeding`\n"
        "  help: did you mean `embedding`?"
    )


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("E = 3", "E = 4", "axes `B T (H E)` do not fit the stored shape [1, 4, 6]"),
        ("B T (H E)", "B T D", "expected the axes B T H E in any order, got B T D"),
        ('axes = "T D"', 'axes = "D T"', "expected T = 4, got 8"),
        ("B T (H E)", "B (H E) T", "do not fit the stored shape"),
    ],
)
def test_axes_that_do_not_fit_are_refused(
    old: str, new: str, text: str, dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(CkeError, match="CKE744") as caught:
        _read(dump, (HEAD + ROWS).replace(old, new), tmp_path)
    assert text in str(caught.value)


def test_a_dump_that_would_run_code_is_refused(dump: Path, tmp_path: Path) -> None:
    np.save(dump / "embed.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(
        RejectedError, match=r"embed.npy: error\[CKE745\]: the file is not readable"
    ):
        _read(dump, HEAD + ROWS, tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [("embed.npy", b"\x93NUMPY"), ("all.safetensors", b"\x00" * 4), ("embed.pt", b"not a zip")],
)
def test_broken_files_are_refused(name: str, data: bytes, dump: Path, tmp_path: Path) -> None:
    (dump / name).write_bytes(data)
    text = (HEAD + ROWS).replace("embed.npy", name) if name.endswith("pt") else HEAD + ROWS
    with pytest.raises(RejectedError, match="CKE745"):
        _read(dump, text, tmp_path)


def test_a_link_or_a_path_out_of_the_dump_is_refused(dump: Path, tmp_path: Path) -> None:
    (dump / "embed.npy").rename(tmp_path / "outside.npy")
    with pytest.raises(MissingInputError, match=r"CKE741\]: no such file in the dump"):
        _read(dump, (HEAD + ROWS).replace("embed.npy", "../outside.npy"), tmp_path)
    with pytest.raises(RejectedError, match=r"CKE745\]: expected a file inside the dump"):
        Dump(dump).tensor("../outside.npy", None)
    (dump / "embed.npy").symlink_to(tmp_path / "outside.npy")
    with pytest.raises(RejectedError, match=r"CKE745\]: expected a file inside the dump"):
        _read(dump, HEAD + ROWS, tmp_path)


def test_values_of_an_unknown_kind_are_refused(dump: Path, tmp_path: Path) -> None:
    np.save(dump / "embed.npy", np.ones((4, 8), np.complex64))
    with pytest.raises(RejectedError, match=r"CKE745\]: expected one of .* got complex64"):
        _read(dump, HEAD + ROWS, tmp_path)
