"""Everything malformed is refused, with its place; nothing is read that was not proven."""

import copy
import functools
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.attention_packet import files, payload
from cke.attention_packet.analyze import analyze
from tests.attention_packet.build import (
    FILES,
    HEX,
    PacketBuilder,
    bits_packet,
    example,
    random_values,
    run,
    values_packet,
)
from tests.attention_packet.conftest import Refused, refusal_text

contract = pytest.mark.contract
TENSOR_KEYS = ("file", "dtype", "byteOrder", "shape", "packedStrides", "byteCount", "sha256")


@contract("PKT-1")
@pytest.mark.parametrize("name", sorted(FILES))
def test_missing_tensor_name_is_refused(name: str, refused: Refused) -> None:
    builder = example()
    del builder.tensors[name]
    assert refused(builder) == f"CKE840: $.tensors: object missing required field `{name}`"


@contract("PKT-1")
def test_extra_tensor_name_is_refused(refused: Refused) -> None:
    builder = example()
    builder.tensors["mask"] = copy.deepcopy(builder.tensors["queries"])
    assert refused(builder) == "CKE840: $.tensors: object contains unknown field `mask`"


@contract("PKT-1")
@pytest.mark.parametrize("name", [*FILES.values(), "attention-metadata.json"])
def test_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    path = example().write(tmp_path)
    tmp_path.joinpath(name).unlink()
    assert "expected a file of the packet folder, got none" in refusal_text(analyze(path))


@contract("PKT-2")
@pytest.mark.parametrize("wrapper", ["attention_metadata", "snapshot"])
def test_wrapped_snapshot_is_refused(wrapper: str, refused: Refused) -> None:
    builder = example()
    builder.snapshot = {wrapper: builder.snapshot}
    assert refused(builder) == f"CKE840: expected the raw snapshot, got it wrapped in `{wrapper}`"


@contract("PKT-3")
@pytest.mark.parametrize(
    "schema", ["darkbloom.attention-packet.v2", "darkbloom.attention-packet.V1", "", None, 1]
)
def test_other_schema_is_refused(schema: Any, refused: Refused) -> None:
    builder = example()
    builder.packet["schema"] = schema
    text = refused(builder)
    assert text.startswith("CKE840: $.schema: expected schema `darkbloom.attention-packet.v1`")


@contract("PKT-4")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: raw.replace(b"41", b"42", 1), "expected sha256"),
        (lambda raw: raw + b" ", "bytes, got"),
        (lambda raw: raw[:-1], "bytes, got"),
    ],
    ids=["changed", "added", "removed"],
)
def test_changed_snapshot_is_refused(
    change: Callable[[bytes], bytes], expected: str, tmp_path: Path
) -> None:
    path = example().write(tmp_path)
    metadata = tmp_path / "attention-metadata.json"
    metadata.write_bytes(change(metadata.read_bytes()))
    assert expected in refusal_text(analyze(path))


@contract("PKT-5")
@pytest.mark.parametrize("key", ["artifactSHA256", "inputSHA256"])
@pytest.mark.parametrize("value", [HEX.upper(), HEX[:-1], HEX + "0", HEX + "\n", "", 7])
def test_identity_hash_that_is_not_lower_case_hex_is_refused(
    key: str, value: Any, refused: Refused
) -> None:
    builder = example()
    builder.packet["identity"][key] = value
    assert refused(builder).startswith(f"CKE840: $.identity.{key}: expected `str`")


@contract("PKT-5")
@pytest.mark.parametrize(
    ("key", "value"),
    [("modelID", ""), ("modelID", "m" * 513), ("backend", "vllm"), ("backend", "")],
)
def test_identity_outside_its_values_is_refused(key: str, value: str, refused: Refused) -> None:
    builder = example()
    builder.packet["identity"][key] = value
    assert refused(builder).startswith("CKE840: $.identity")


@contract("PKT-5")
def test_identity_at_its_bounds_is_analysed(tmp_path: Path) -> None:
    builder = example()
    builder.packet["identity"] |= {"modelID": "m" * 512, "backend": "contiguous"}
    builder.record["dispatch"] = "contiguous_sdpa"
    assert run(builder, tmp_path).analysis.status == "analyzed"


@contract("PKT-9")
@pytest.mark.parametrize(
    "key",
    [
        "configuration",
        "selectedForwards",
        "expectedOwnerCount",
        "forwardSucceeded",
        "sampleOutcome",
        "refusals",
        "records",
    ],
)
def test_missing_snapshot_key_is_refused(key: str, refused: Refused) -> None:
    builder = example()
    del builder.snapshot[key]
    assert f"object missing required field `{key}`" in refused(builder)


@contract("PKT-9")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sampleOutcome", "ready"),
        ("selectedForwards", 129),
        ("selectedForwards", -1),
        ("seedToken", None),
        ("seedToken", -1),
        ("targetToken", 2**31),
        ("refusals", {"forward_failed": 0}),
        ("refusals", ["forward_failed"]),
        ("forwardSucceeded", 1),
    ],
)
def test_snapshot_value_out_of_range_is_refused(key: str, value: Any, refused: Refused) -> None:
    builder = example()
    builder.snapshot[key] = value
    assert refused(builder).startswith("CKE840: $.")


@contract("PKT-9")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requestID", 0),
        ("requestID", 2**64),
        ("outputIndex", 0),
        ("outputIndex", 1_000_001),
        ("maximumRecords", 0),
        ("maximumRecords", 129),
    ],
)
def test_configuration_out_of_range_is_refused(key: str, value: int, refused: Refused) -> None:
    builder = example()
    builder.snapshot["configuration"][key] = value
    assert refused(builder).startswith(f"CKE840: $.configuration.{key}")


@contract("PKT-9")
def test_largest_request_id_is_analysed(tmp_path: Path) -> None:
    builder = example()
    builder.snapshot["configuration"]["requestID"] = builder.record["requestID"] = 2**64 - 1
    analysis = run(builder, tmp_path).analysis
    assert analysis.selection is not None
    assert (analysis.status, analysis.selection.request_id) == ("analyzed", 2**64 - 1)


@contract("PKT-10")
@pytest.mark.parametrize("key", sorted(example().record))
def test_missing_record_key_is_refused(key: str, refused: Refused) -> None:
    builder = example()
    del builder.record[key]
    assert refused(builder) == f"CKE840: $.records[0]: object missing required field `{key}`"


@contract("PKT-10")
@pytest.mark.parametrize("key", ["dtype", "shape", "graphConstructionStrides"])
@pytest.mark.parametrize("name", ["queries", "incomingKeys", "incomingValues", "output"])
def test_missing_key_of_an_observed_tensor_is_refused(
    key: str, name: str, refused: Refused
) -> None:
    builder = example()
    del builder.record[name][key]
    assert f"$.records[0].{name}: object missing required field `{key}`" in refused(builder)


@contract("PKT-10")
def test_unknown_record_key_is_refused(refused: Refused) -> None:
    builder = example()
    builder.record["alibi"] = False
    assert refused(builder) == "CKE840: $.records[0]: object contains unknown field `alibi`"


@contract("PKT-10")
@pytest.mark.parametrize("part", ["packet", "snapshot", "identity", "geometry", "capture"])
def test_unknown_key_anywhere_is_refused(part: str, refused: Refused) -> None:
    builder = example()
    target = {"packet": builder.packet, "snapshot": builder.snapshot}.get(part)
    (builder.packet[part] if target is None else target)["extra"] = 1
    assert "object contains unknown field `extra`" in refused(builder)


@contract("PKT-13")
@pytest.mark.parametrize("key", TENSOR_KEYS)
@pytest.mark.parametrize("name", sorted(FILES))
def test_missing_key_of_a_tensor_entry_is_refused(name: str, key: str, refused: Refused) -> None:
    builder = example()
    del builder.tensors[name][key]
    assert refused(builder) == f"CKE840: $.tensors.{name}: object missing required field `{key}`"


@contract("PKT-14")
@pytest.mark.parametrize(
    ("part", "key"),
    [("identity", "artifactSHA256"), ("identity", "inputSHA256"), ("metadata", "sha256")],
)
def test_placeholder_is_refused(part: str, key: str, refused: Refused) -> None:
    builder = example()
    builder.packet[part][key] = "<64 lowercase hex characters>"
    assert refused(builder).startswith(f"CKE840: $.{part}.{key}")


@contract("PKT-14")
@pytest.mark.parametrize("name", sorted(FILES))
def test_placeholder_of_a_tensor_is_refused(name: str, refused: Refused) -> None:
    builder = example()
    builder.tensors[name]["sha256"] = "<64 lowercase hex characters>"
    assert refused(builder).startswith(f"CKE840: $.tensors.{name}.sha256")


def integer_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [place for key, item in items for place in integer_places(item, (*path, key))]


def put(value: Any, path: tuple[Any, ...], item: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = item


@contract("PKT-15")
@pytest.mark.parametrize("value", [True, False, 1.0, "1"])
@pytest.mark.parametrize("path", integer_places(example().snapshot), ids=str)
def test_integer_of_the_snapshot_is_no_other_type(
    path: tuple[Any, ...], value: Any, refused: Refused
) -> None:
    builder = example()
    put(builder.snapshot, path, value)
    assert "expected `int`, got" in refused(builder)


@contract("PKT-7")
@contract("PKT-15")
@pytest.mark.parametrize("value", [True, False, 1.0, 0.0])
@pytest.mark.parametrize(
    "path", [*integer_places(example().packet), ("metadata", "byteCount")], ids=str
)
def test_integer_of_the_packet_is_no_other_type(
    path: tuple[Any, ...], value: Any, refused: Refused
) -> None:
    builder = example()
    put(builder.packet, path, value)
    assert "expected `int`, got" in refused(builder)


@contract("PKT-16")
@pytest.mark.parametrize(
    ("name", "strides", "wrong"),
    [
        ("queries", [16, 4, 4, 1], [16, 4, 1, 1]),
        ("queries", [16, 4, 4, 1], [1, 4, 4, 1]),
        ("storedKeys", [24, 12, 4, 1], [24, 4, 8, 1]),
        ("storedValues", [24, 12, 4, 1], [48, 24, 8, 2]),
        ("incomingKeys", [8, 4, 4, 1], [8, 4, 0, 1]),
        ("incomingValues", [8, 4, 4, 1], [8, 4, 4, 4]),
        ("output", [16, 4, 4, 1], [-16, 4, 4, 1]),
    ],
)
def test_unpacked_strides_are_refused(
    name: str, strides: list[int], wrong: list[int], refused: Refused
) -> None:
    builder = example()
    assert builder.tensors[name]["packedStrides"] == strides
    builder.tensors[name]["packedStrides"] = wrong
    assert refused(builder) == (
        f"CKE843: $.tensors.{name}.packedStrides: expected packed strides {strides}, got {wrong}"
    )


@contract("PKT-17")
@pytest.mark.parametrize("dtype", ["float64", "int8", "fp8", "bf16", "Float32", "", None])
@pytest.mark.parametrize("name", sorted(FILES))
def test_other_dtype_is_refused(name: str, dtype: Any, refused: Refused) -> None:
    builder = example()
    builder.tensors[name]["dtype"] = dtype
    assert refused(builder).startswith(f"CKE840: $.tensors.{name}.dtype")


@contract("PKT-18")
@pytest.mark.parametrize("order", ["big", "native", "LITTLE", "", None])
def test_other_byte_order_is_refused(order: Any, refused: Refused) -> None:
    builder = example()
    builder.tensors["output"]["byteOrder"] = order
    assert refused(builder).startswith("CKE840: $.tensors.output.byteOrder")


@pytest.fixture
def no_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Payload reads and decodes, recorded; the list must stay empty."""
    seen: list[str] = []
    for name in ("read_exact", "decode", "native_bits", "promote"):
        spy = functools.partial(recorded, seen, getattr(payload, name))
        monkeypatch.setattr(payload, name, spy)
    return seen


def recorded(seen: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
    seen.append(function.__name__)
    return function(*arguments)


def test_spy_sees_every_read_and_decode(tmp_path: Path, no_read: list[str]) -> None:
    run(example(), tmp_path)
    assert [no_read.count(name) for name in ("read_exact", "decode", "native_bits")] == [6, 6, 6]


@contract("PKT-19")
@pytest.mark.parametrize("name", sorted(FILES))
def test_wrong_byte_count_is_refused_before_any_read(
    name: str, refused: Refused, no_read: list[str]
) -> None:
    builder = example()
    builder.tensors[name]["byteCount"] += 2
    builder.packet["capture"]["tensorPayloadBytes"] += 2
    assert refused(builder).startswith(f"CKE843: $.tensors.{name}.byteCount: expected ")
    assert no_read == []


@contract("PKT-19")
def test_giant_shape_with_a_tiny_file_is_refused_before_any_read(
    refused: Refused, no_read: list[str]
) -> None:
    builder = example()
    shape = [1, 2**20, 2**20, 2**20]
    builder.tensors["storedKeys"] |= {
        "shape": shape,
        "packedStrides": [2**60, 2**40, 2**20, 1],
        "byteCount": 48,
    }
    assert refused(builder).startswith("CKE843: $.tensors.storedKeys.byteCount: expected 2305843")
    assert no_read == []


@contract("PKT-19")
@contract("PKT-20")
def test_short_file_is_refused_before_any_read(tmp_path: Path, no_read: list[str]) -> None:
    path = example().write(tmp_path)
    tmp_path.joinpath("output.bin").write_bytes(b"x")
    text = refusal_text(analyze(path))
    assert text == "CKE842: $.tensors.output.byteCount: expected 64 bytes, got 1"
    assert no_read == []


@contract("PKT-19")
@pytest.mark.parametrize("part", ["dtype", "strides", "shape"])
def test_contradiction_is_refused_before_any_read(
    part: str, refused: Refused, no_read: list[str]
) -> None:
    builder = example()
    tensor = builder.tensors["output"]
    if part == "dtype":
        tensor["dtype"] = "float16"
    elif part == "strides":
        tensor["packedStrides"] = [1, 1, 1, 1]
    else:
        tensor |= {"shape": [1, 2, 1, 8], "packedStrides": [16, 8, 8, 1]}
    refused(builder)
    assert no_read == []


@contract("PKT-20")
@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 128]),
    ],
    ids=["truncated", "extended", "first bit", "last bit"],
)
def test_changed_payload_is_refused(
    name: str, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = example().write(tmp_path)
    file = tmp_path / FILES[name]
    file.write_bytes(change(file.read_bytes()))
    assert refusal_text(analyze(path)).startswith(f"CKE842: $.tensors.{name}.")


@contract("PKT-21")
@pytest.mark.parametrize("difference", [-1, 1, 256])
def test_payload_sum_that_is_not_the_sum_is_refused(difference: int, refused: Refused) -> None:
    builder = example()
    assert builder.packet["capture"]["tensorPayloadBytes"] == 256
    builder.packet["capture"]["tensorPayloadBytes"] += difference
    assert refused(builder) == (
        "CKE843: $.capture.tensorPayloadBytes: "
        f"expected 256 bytes as the sum of the payloads, got {256 + difference}"
    )


def large_packet(tokens: int) -> PacketBuilder:
    """QH 8, KVH 8, D 128 in float16: 4,096 bytes a token, and 2,048 for each of the others."""
    shapes = {name: (1, 8, 1, 128) for name in FILES}
    shapes |= {"storedKeys": (1, 8, tokens, 128), "storedValues": (1, 8, tokens, 128)}
    payloads = {name: np.zeros(shape, dtype=np.uint16) for name, shape in shapes.items()}
    return bits_packet(payloads, query="float16", storage="float16", out="float16")


@contract("PKT-22")
def test_payload_of_exactly_32_mib_is_analysed(tmp_path: Path) -> None:
    builder = large_packet(8190)
    assert builder.packet["capture"]["tensorPayloadBytes"] == 32 << 20
    assert run(builder, tmp_path).analysis.status == "analyzed"


@contract("PKT-22")
def test_payload_above_32_mib_is_refused(refused: Refused, no_read: list[str]) -> None:
    builder = large_packet(8190)
    tensor = builder.tensors["output"]
    tensor |= {"shape": [1, 1, 1, 1025], "packedStrides": [1025] * 3 + [1], "byteCount": 2050}
    builder.packet["capture"]["tensorPayloadBytes"] += 2
    assert refused(builder) == "CKE843: expected at most 33554432 payload bytes, got 33554434"
    assert no_read == []


def padded(size: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw + b" " * (size - len(raw))


@contract("PKT-23")
def test_documents_of_exactly_256_kib_are_analysed(tmp_path: Path) -> None:
    builder = example()
    builder.raw_packet = builder.raw_snapshot = padded(262_144)
    assert run(builder, tmp_path).analysis.status == "analyzed"


@contract("PKT-23")
@pytest.mark.parametrize("document", ["raw_packet", "raw_snapshot"])
def test_document_above_256_kib_is_refused(document: str, refused: Refused) -> None:
    builder = example()
    setattr(builder, document, padded(262_145))
    assert "expected at most 262144 bytes, got 262145" in refused(builder)


@contract("PKT-28")
@pytest.mark.parametrize("name", ["storedKeys", "storedValues", "incomingKeys", "incomingValues"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_mixed_kv_dtypes_are_refused(name: str, dtype: str, refused: Refused) -> None:
    builder = example()
    bits = builder.payloads[name].astype({"float16": np.uint16, "float32": np.uint32}[dtype])
    builder.payloads[name] = bits
    builder.tensors[name] |= {
        "dtype": dtype,
        "byteCount": bits.nbytes,
        "sha256": hashlib.sha256(bits.tobytes()).hexdigest(),
    }
    total = sum(payload.nbytes for payload in builder.payloads.values())
    builder.packet["capture"]["tensorPayloadBytes"] = total
    if name in builder.record:
        builder.record[name]["dtype"] = dtype
    if name == "storedKeys":
        for tensor in builder.record["storage"].values():
            tensor["dtype"] = dtype
    assert "expected the dtype of the stored keys" in refused(builder)


@contract("PKT-28")
def test_storage_of_another_dtype_is_refused(refused: Refused) -> None:
    builder = example()
    builder.record["storage"]["pages.v"]["dtype"] = "float16"
    assert refused(builder) == (
        "CKE844: $.records[0].storage.pages.v.dtype: "
        "expected the dtype of the stored keys, bfloat16, got float16"
    )


@contract("PKT-30")
@pytest.mark.parametrize("name", ["queries", "incomingKeys", "incomingValues", "output"])
@pytest.mark.parametrize(("key", "value"), [("dtype", "float16"), ("shape", [1, 2, 2, 4])])
def test_tensor_that_the_snapshot_did_not_observe_is_refused(
    name: str, key: str, value: Any, refused: Refused
) -> None:
    builder = example()
    builder.record[name][key] = value
    assert refused(builder).startswith(f"CKE844: $.tensors.{name}: expected ")


@contract("PKT-30")
@pytest.mark.parametrize("count", [0, 65])
def test_storage_map_outside_its_size_is_refused(count: int, refused: Refused) -> None:
    builder = example()
    tensor = builder.record["storage"]["pages.k"]
    builder.record["storage"] = {f"page{index}": tensor for index in range(count)}
    assert refused(builder).startswith("CKE840: $.records[0].storage")


@contract("PKT-30")
def test_kernel_output_of_a_foreign_dtype_is_refused(refused: Refused) -> None:
    builder = example()
    builder.record["kernelOutputDType"] = "float16"
    assert refused(builder).startswith("CKE844: $.records[0].kernelOutputDType: expected the dtype")


@contract("PKT-29")
@contract("PKT-70")
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("queries", [1, 2, 2, 4]),
        ("output", [1, 2, 1, 8]),
        ("output", [4, 1, 1, 4]),
        ("storedKeys", [1, 3, 2, 4]),
        ("storedValues", [1, 1, 3, 8]),
        ("incomingKeys", [1, 1, 2, 4]),
        ("incomingValues", [1, 4, 1, 2]),
    ],
)
def test_shape_that_is_not_the_calls_is_refused(
    name: str, shape: list[int], refused: Refused
) -> None:
    builder = example()
    _, heads, tokens, width = shape
    strides = [heads * tokens * width, tokens * width, width, 1]
    builder.tensors[name] |= {"shape": shape, "packedStrides": strides}
    if name in builder.record:
        builder.record[name]["shape"] = shape
    assert refused(builder).startswith("CKE844: $.tensors.")


@contract("PKT-38")
@pytest.mark.parametrize(
    ("key", "value"),
    [("visibleStart", 1), ("visibleStart", -1), ("visibleEnd", 2), ("visibleEnd", 4)],
)
def test_visible_range_that_is_not_the_history_is_refused(
    key: str, value: int, refused: Refused
) -> None:
    builder = example()
    builder.packet["geometry"][key] = value
    assert refused(builder).startswith("CKE844: $.geometry: expected the visible range [0, 3), got")


@contract("PKT-38")
def test_history_of_another_length_is_refused(refused: Refused) -> None:
    builder = example()
    builder.record.update(offsetBefore=3, offsetAfter=4)
    builder.packet["geometry"]["visibleEnd"] = 4
    text = refused(builder)
    assert (
        text == "CKE844: $.tensors.storedKeys.shape: expected shape [1, 2, 4, 4], got [1, 2, 3, 4]"
    )


@contract("PKT-39")
@pytest.mark.parametrize("before", [0, 1, 3, 4])
def test_offset_that_does_not_grow_by_one_is_refused(before: int, refused: Refused) -> None:
    builder = example()
    builder.record["offsetBefore"] = before
    assert refused(builder) == (
        f"CKE844: $.records[0].offsetAfter: expected offsetAfter {before + 1}, got 3"
    )


@contract("PKT-42")
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 2), (2, 4), (5, 3)])
def test_query_heads_that_are_no_multiple_are_refused(
    heads: int, kv_heads: int, refused: Refused
) -> None:
    q, k, v = random_values(heads=heads, kv_heads=kv_heads)
    output = np.zeros_like(q)
    assert refused(values_packet(q, k, v, output)) == (
        "CKE844: $.tensors.queries.shape: "
        f"expected a multiple of {kv_heads} kv heads, got {heads} query heads"
    )


@contract("PKT-42")
def test_zero_heads_are_refused(refused: Refused) -> None:
    builder = example()
    builder.tensors["storedKeys"] |= {"shape": [1, 0, 3, 4], "byteCount": 0}
    assert refused(builder).startswith("CKE840: $.tensors.storedKeys.shape[1]: expected `int` >= 1")


@contract("PKT-44")
@pytest.mark.parametrize(
    "bits", [0, 0x8000_0000, 0xBE80_0000, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0x7F80_0001]
)
def test_scale_that_is_not_finite_and_positive_is_refused(bits: int, refused: Refused) -> None:
    builder = example()
    builder.record["scaleBits"] = bits
    assert refused(builder) == (
        "CKE844: $.records[0].scaleBits: "
        f"expected the bits of a finite positive float32, got {bits:#010x}"
    )


@contract("PKT-44")
@pytest.mark.parametrize("bits", [-1, 2**32, True, 0.25, "0x3e800000"])
def test_scale_that_is_no_bit_pattern_is_refused(bits: Any, refused: Refused) -> None:
    builder = example()
    builder.record["scaleBits"] = bits
    assert refused(builder).startswith("CKE840: $.records[0].scaleBits: expected `int`")


@contract("PKT-44")
@pytest.mark.parametrize("bits", [0x3E80_0000, 0x0000_0001, 0x7F7F_FFFF])
def test_finite_positive_scale_is_accepted(bits: int, tmp_path: Path) -> None:
    builder = example()
    builder.record["scaleBits"] = bits
    found = run(builder, tmp_path)
    assert found.exit_code == 0
    assert found.analysis.scale is not None
    assert struct.pack("<f", found.analysis.scale.value) == struct.pack("<I", bits)


@contract("PKT-46")
@pytest.mark.parametrize("key", ["requestID", "outputIndex"])
def test_record_of_another_request_is_refused(key: str, refused: Refused) -> None:
    builder = example()
    builder.record[key] += 1
    assert refused(builder).startswith("CKE844: $.records[0]: expected request 41 output 2, got")


@contract("PKT-70")
@pytest.mark.parametrize(
    ("part", "key"),
    [
        (part, key)
        for part in ("identity", "metadata", "geometry", "capture")
        for key in example().packet[part]
    ],
)
def test_missing_key_of_the_packet_is_refused(part: str, key: str, refused: Refused) -> None:
    builder = example()
    del builder.packet[part][key]
    assert refused(builder) == f"CKE840: $.{part}: object missing required field `{key}`"


@contract("PKT-70")
@pytest.mark.parametrize("key", ["identity", "metadata", "geometry", "capture", "tensors"])
def test_missing_part_of_the_packet_is_refused(key: str, refused: Refused) -> None:
    builder = example()
    del builder.packet[key]
    assert refused(builder) == f"CKE840: $: object missing required field `{key}`"


@contract("PKT-70")
def test_unknown_evaluation_status_is_refused(refused: Refused) -> None:
    builder = example()
    builder.packet["capture"]["evaluationStatus"] = "done"
    assert refused(builder).startswith("CKE840: $.capture.evaluationStatus")


@contract("PKT-35")
@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"null",
        b"1",
        b"",
        b"{",
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"9" * 4301 + b"}",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        "{}".encode("utf-16"),
    ],
    ids=lambda raw: raw[:12].decode("latin-1"),
)
@pytest.mark.parametrize("document", ["raw_packet", "raw_snapshot"])
def test_hostile_json_is_refused(raw: bytes, document: str, refused: Refused) -> None:
    builder = example()
    setattr(builder, document, lambda _: raw)
    refused(builder)


@contract("PKT-35")
def test_duplicate_key_deep_in_a_document_is_refused(refused: Refused) -> None:
    builder = example()
    builder.raw_packet = lambda raw: raw.replace(b'"dtype"', b'"dtype": "float32", "dtype"', 1)
    assert refused(builder).endswith("$.tensors.queries.dtype: the key stands twice")


@contract("PKT-35")
def test_refusal_has_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cke.attention_packet.__main__ import main

    path = tmp_path / "packet.json"
    path.write_bytes(b"[" * 100_000)
    assert main([str(path), "--output", str(tmp_path / "report.json")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("packet.json: $: error[CKE802]: ")
    assert "Traceback" not in captured.err
    report = json.loads(tmp_path.joinpath("report.json").read_text())
    assert report["status"] == "refused"


def test_json_limits_are_those_of_the_format() -> None:
    assert files.JSON_LIMITS.max_bytes == 256 * 1024
    assert not files.JSON_LIMITS.links


@contract("PKT-70")
@pytest.mark.parametrize("value", [-1, 2**53 + 1])
def test_a_count_that_json_cannot_hold_is_refused_before_sizes_are_compared(
    value: int, refused: Refused
) -> None:
    builder = example()
    builder.packet["capture"]["tensorPayloadBytes"] = value
    bound = ">= 0" if value < 0 else f"<= {2**53}"
    assert refused(builder) == f"CKE840: $.capture.tensorPayloadBytes: expected `int` {bound}"


@contract("PKT-10")
@pytest.mark.parametrize("value", [-1, 2**40 + 1])
def test_an_offset_out_of_range_is_refused_before_offsets_are_compared(
    value: int, refused: Refused
) -> None:
    builder = example()
    builder.record["offsetAfter"] = value
    bound = ">= 0" if value < 0 else f"<= {2**40}"
    assert refused(builder) == f"CKE840: $.records[0].offsetAfter: expected `int` {bound}"


@contract("PKT-10")
@pytest.mark.parametrize("key", ["storageLayerIndex", "modelLayerIndex"])
@pytest.mark.parametrize("value", [-1, 2**31])
def test_a_layer_out_of_range_is_refused_before_layers_are_compared(
    key: str, value: int, refused: Refused
) -> None:
    builder = example()
    builder.record[key] = value
    bound = ">= 0" if value < 0 else f"<= {2**31 - 1}"
    assert refused(builder) == f"CKE840: $.records[0].{key}: expected `int` {bound}"


@contract("PKT-10")
def test_an_observed_shape_of_too_many_axes_is_refused(refused: Refused) -> None:
    builder = example()
    builder.record["output"]["shape"] = [1] * 17
    expected = "CKE840: $.records[0].output.shape: expected `array` of length <= 16"
    assert refused(builder) == expected
