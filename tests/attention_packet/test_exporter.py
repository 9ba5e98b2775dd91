"""A packet is written whole, last file last, and only for a confirmed step of a supported layer."""

import json
import stat
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from cke.attention_packet import exporter
from cke.attention_packet.analyze import analyze
from cke.attention_packet.export_documents import StepFacts
from cke.attention_packet.exporter import export_packet, hash_file, write_run_evidence
from cke.errors import CkeError
from cke.schemas.attention_packet import ObservedTensor, RunEvidence
from tests.attention_packet.build import FILES, HEX, attend64, random_values

contract = pytest.mark.contract
ALL_FILES = sorted([*FILES.values(), "attention-metadata.json", "packet.json"])


def facts(**changes: Any) -> StepFacts:
    storage = ObservedTensor(dtype="bfloat16", shape=(1, 2, 8, 4), graph_construction_strides=())
    values: dict[str, Any] = {
        "model_id": "tiny",
        "artifact_sha256": HEX,
        "input_sha256": HEX,
        "backend": "contiguous",
        "dispatch": "contiguous_sdpa",
        "phase": "decode",
        "request_id": 1,
        "output_index": 3,
        "batch_size": 1,
        "input_width": 1,
        "storage_layer_index": 0,
        "model_layer_index": 2,
        "offset_before": 2,
        "scale": 0.5,
        "kernel_output_dtype": "float32",
        "window": None,
        "softcap": None,
        "sinks": False,
        "spans": False,
        "bidirectional": False,
        "shares_kv": False,
        "mtp": False,
        "storage": {"kv.k": storage, "kv.v": storage},
        "strides": {"queries": (16, 4, 4, 1)},
        "selected_forwards": 1,
        "forward_succeeded": True,
        "sample_outcome": "confirmed",
        "seed_token": 7,
        "target_token": 8,
        "refusals": {},
        "evaluation_status": "completed",
    }
    return StepFacts(**(values | changes))


def arrays(dtype: Any = ml_dtypes.bfloat16) -> dict[str, np.ndarray]:
    q, k, v = random_values(0)
    k, v = k.astype(dtype), v.astype(dtype)
    output = attend64(q, k.astype(np.float64), v.astype(np.float64), 0.5).astype(np.float32)
    return {
        "queries": q[:, None],
        "storedKeys": k,
        "storedValues": v,
        "incomingKeys": k[:, -1:],
        "incomingValues": v[:, -1:],
        "output": output[:, None],
    }


def test_exported_packet_is_analysed(tmp_path: Path) -> None:
    found = export_packet(arrays(), facts(), tmp_path / "packet")
    assert found.status == "captured"
    assert found.packet_sha256 == hash_file(tmp_path / "packet/packet.json")
    outcome = analyze(tmp_path / "packet/packet.json")
    assert outcome.analysis.refusal is None
    assert (outcome.exit_code, outcome.analysis.status) == (0, "analyzed")
    assert outcome.analysis.original_query_reference is not None
    linf = outcome.analysis.original_query_reference.comparison.global_.linf
    assert linf is not None
    assert linf < 1e-6


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_exported_bytes_are_those_of_the_arrays(dtype: Any, tmp_path: Path) -> None:
    given = arrays(dtype)
    name = np.dtype(dtype).name
    storage = ObservedTensor(dtype=name, shape=(1,), graph_construction_strides=())
    export_packet(given, facts(storage={"kv": storage}), tmp_path / "packet")
    for tensor, file in FILES.items():
        assert tmp_path.joinpath("packet", file).read_bytes() == given[tensor].tobytes()
    assert analyze(tmp_path / "packet/packet.json").analysis.status == "analyzed"


@contract("PKT-1")
def test_folder_holds_eight_private_files(tmp_path: Path) -> None:
    export_packet(arrays(), facts(), tmp_path / "packet")
    assert sorted(path.name for path in tmp_path.joinpath("packet").iterdir()) == ALL_FILES
    assert stat.S_IMODE(tmp_path.joinpath("packet").stat().st_mode) == 0o700
    for path in tmp_path.joinpath("packet").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_packet_json_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = exporter.write_atomic

    def write(path: Path, data: bytes, **options: Any) -> None:
        written.append(path.name)
        real(path, data, **options)

    monkeypatch.setattr(exporter, "write_atomic", write)
    export_packet(arrays(), facts(), tmp_path / "packet")
    assert written[-2:] == ["attention-metadata.json", "packet.json"]
    assert sorted(written) == ALL_FILES


@pytest.mark.parametrize("last", ALL_FILES)
def test_interrupted_export_leaves_nothing(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exporter.write_atomic

    def write(path: Path, data: bytes, **options: Any) -> None:
        if path.name == last:
            raise KeyboardInterrupt
        real(path, data, **options)

    monkeypatch.setattr(exporter, "write_atomic", write)
    with pytest.raises(KeyboardInterrupt):
        export_packet(arrays(), facts(), tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


def test_documents_are_sorted_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        export_packet(arrays(), facts(), tmp_path / name)
    for file in ("packet.json", "attention-metadata.json"):
        text = tmp_path.joinpath("first", file).read_text()
        assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
        assert text == tmp_path.joinpath("second", file).read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"forward_succeeded": False},
        {"sample_outcome": "discarded"},
        {"sample_outcome": "graph_constructed_unconfirmed"},
        {"selected_forwards": 2},
        {"seed_token": None},
        {"target_token": None},
        {"refusals": {"forward_failed": 1}},
        {"evaluation_status": "failed"},
    ],
    ids=str,
)
def test_unconfirmed_step_writes_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    found = export_packet(arrays(), facts(**changes), tmp_path / "packet")
    assert (found.status, found.packet_sha256) == ("inconclusive", None)
    assert list(tmp_path.iterdir()) == []


@contract("PKT-69")
def test_export_of_a_sliding_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CkeError, match=r"CKE847.*expected a causal layer without a window, got wind"
    ):
        export_packet(arrays(), facts(window=512), tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


@contract("PKT-69")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"softcap": 50.0}, "expected a layer without a softcap, got softcap 50.0"),
        ({"sinks": True}, "expected a layer without sinks, got sinks"),
        ({"spans": True}, "expected a layer without spans, got spans"),
        ({"bidirectional": True}, "expected causal attention, got bidirectional attention"),
        ({"shares_kv": True}, "expected a layer with its own keys and values, got shared ones"),
        ({"mtp": True}, "expected a step without MTP, got MTP"),
        ({"batch_size": 2}, "expected one sequence, got a batch of 2"),
        ({"input_width": 3}, "expected one token, got 3 tokens"),
        ({"phase": "prefill"}, "expected a decode step, got `prefill`"),
        ({"backend": "paged"}, "expected a dispatch of `paged`, got `contiguous_sdpa`"),
    ],
    ids=str,
)
def test_export_of_an_unsupported_call_is_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(CkeError, match=expected):
        export_packet(arrays(), facts(**changes), tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


@contract("PKT-66")
@pytest.mark.parametrize("name", ["storedKeys", "storedValues", "incomingKeys", "incomingValues"])
def test_differing_kv_dtypes_give_no_packet(name: str, tmp_path: Path) -> None:
    given = arrays()
    given[name] = given[name].astype(np.float16)
    with pytest.raises(CkeError, match="expected one dtype of keys and values"):
        export_packet(given, facts(), tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("queries", lambda x: x[:3], "expected [3, 1, 4] for `output`"),
        ("storedKeys", lambda x: x[:, :2], "expected [2, 3, 4] for `storedKeys`"),
        ("storedValues", lambda x: x[:, :, :2], "expected [2, 3, 4] for `storedValues`"),
        ("incomingKeys", lambda x: x[0], "expected [heads, tokens, width] for `incomingKeys`"),
        ("output", lambda x: x.astype(np.float64), "expected float16, bfloat16 or float32"),
    ],
    ids=["heads", "tokens", "width", "axes", "dtype"],
)
def test_arrays_of_another_shape_are_refused(
    name: str, change: Any, expected: str, tmp_path: Path
) -> None:
    given = arrays()
    given[name] = change(given[name])
    with pytest.raises(CkeError) as caught:
        export_packet(given, facts(), tmp_path / "packet")
    assert expected in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@contract("PKT-42")
def test_arrays_without_kv_heads_are_not_exported(tmp_path: Path) -> None:
    given = {name: x if name in ("queries", "output") else x[:0] for name, x in arrays().items()}
    with pytest.raises(CkeError, match="expected every axis of `storedKeys` to hold something"):
        export_packet(given, facts(), tmp_path / "packet")


@contract("PKT-42")
def test_query_heads_that_are_no_multiple_are_not_exported(tmp_path: Path) -> None:
    given = arrays()
    given |= {name: given[name][:3] for name in ("queries", "output")}
    with pytest.raises(CkeError, match="expected a multiple of 2 kv heads, got 3 query heads"):
        export_packet(given, facts(), tmp_path / "packet")


@contract("PKT-30")
def test_kernel_output_of_a_foreign_dtype_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(CkeError, match="expected a kernel output dtype of output or storage"):
        export_packet(arrays(), facts(kernel_output_dtype="float16"), tmp_path / "packet")


@contract("PKT-22")
def test_payload_above_the_limit_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(array.nbytes for array in arrays().values())
    monkeypatch.setattr(exporter, "MAX_PAYLOAD_BYTES", total)
    assert export_packet(arrays(), facts(), tmp_path / "packet").status == "captured"
    monkeypatch.setattr(exporter, "MAX_PAYLOAD_BYTES", total - 1)
    message = f"expected at most {total - 1} payload bytes, got {total}"
    with pytest.raises(CkeError, match=message):
        export_packet(arrays(), facts(), tmp_path / "larger")


def test_missing_array_is_refused(tmp_path: Path) -> None:
    given = arrays()
    del given["incomingKeys"]
    with pytest.raises(CkeError, match="expected the arrays"):
        export_packet(given, facts(), tmp_path / "packet")


def test_facts_that_the_format_does_not_hold_are_refused(tmp_path: Path) -> None:
    for change in ({"artifact_sha256": "none"}, {"request_id": 0}, {"kernel_output_dtype": "f32"}):
        with pytest.raises(CkeError, match="CKE847"):
            export_packet(arrays(), facts(**change), tmp_path / "packet")
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.joinpath("packet").mkdir()
    tmp_path.joinpath("packet/mine").write_text("mine")
    with pytest.raises(CkeError, match="expected a folder that does not exist yet"):
        export_packet(arrays(), facts(), tmp_path / "packet")
    assert tmp_path.joinpath("packet/mine").read_text() == "mine"


def evidence(packet_sha256: str) -> RunEvidence:
    return RunEvidence(
        probe_executable="python",
        probe_sha256=HEX,
        packet_sha256=packet_sha256,
        cache_layout="contiguous",
        command=("cke", "packet", "export"),
        runtime={"cke": "0"},
    )


@contract("PKT-65")
@contract("PKT-67")
def test_run_evidence_binds_probe_and_packet_outside_the_packet(tmp_path: Path) -> None:
    found = export_packet(arrays(), facts(), tmp_path / "packet")
    assert found.packet_sha256 is not None
    path = tmp_path / "packet-run.json"
    write_run_evidence(path, evidence(found.packet_sha256), tmp_path / "packet")
    read = msgspec.json.decode(path.read_bytes(), type=RunEvidence)
    assert read.packet_sha256 == hash_file(tmp_path / "packet/packet.json")
    assert read.probe_sha256 == HEX
    packet = tmp_path.joinpath("packet/packet.json").read_text()
    assert "probe" not in packet


@contract("PKT-67")
def test_run_evidence_inside_the_packet_is_refused(tmp_path: Path) -> None:
    export_packet(arrays(), facts(), tmp_path / "packet")
    with pytest.raises(CkeError, match="expected run evidence outside the packet folder"):
        write_run_evidence(tmp_path / "packet/run.json", evidence(HEX), tmp_path / "packet")
    assert sorted(path.name for path in tmp_path.joinpath("packet").iterdir()) == ALL_FILES
