"""What v1 does not support is inconclusive with exit 2; what is not confirmed, with exit 0."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.attention_packet import analyze as analyzer
from cke.attention_packet import payload
from cke.attention_packet.selection import (
    LAST_ROW_DIFFERS,
    NO_INTERPRETATION,
    NONFINITE_INPUT,
    NONFINITE_RESULT,
    NOT_COMPLETED,
    NOT_CONFIRMED,
)
from tests.attention_packet.build import (
    FILES,
    PacketBuilder,
    bits_packet,
    example,
    random_values,
    run,
    values_packet,
)

contract = pytest.mark.contract


@pytest.fixture
def unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Analyse a packet that must be unsupported before a payload is touched; return the reasons."""

    def fail(*_: Any) -> None:
        raise AssertionError("a payload was read")

    monkeypatch.setattr(payload, "read_exact", fail)

    def check(builder: PacketBuilder) -> tuple[str, ...]:
        found = run(builder, tmp_path / "packet")
        analysis = found.analysis
        assert (analysis.status, found.exit_code) == ("inconclusive", 2), analysis.refusal
        assert analysis.interpretation == NO_INTERPRETATION
        assert analysis.original_query_reference is None
        assert analysis.additions is None
        return analysis.inconclusive_reasons

    return check


@contract("PKT-7")
@pytest.mark.parametrize("index", [1, -1, 64])
def test_other_record_index_is_unsupported(index: int, unsupported) -> None:
    builder = example()
    builder.packet["metadata"]["recordIndex"] = index
    assert unsupported(builder) == ("recordIndex is not 0",)


@contract("PKT-8")
@pytest.mark.parametrize("count", [0, 2, -1])
def test_other_owner_count_is_unsupported(count: int, unsupported) -> None:
    builder = example()
    builder.snapshot["expectedOwnerCount"] = count
    assert unsupported(builder) == ("expectedOwnerCount is not 1",)


@contract("PKT-8")
@pytest.mark.parametrize("declared", [1, 2])
@pytest.mark.parametrize("layer", [5, 6])
def test_two_records_are_unsupported(declared: int, layer: int, unsupported) -> None:
    builder = example()
    builder.snapshot["expectedOwnerCount"] = declared
    builder.snapshot["records"].append(copy.deepcopy(builder.record) | {"modelLayerIndex": layer})
    assert "the snapshot does not hold exactly one record" in unsupported(builder)


@contract("PKT-8")
def test_no_record_is_unsupported(unsupported) -> None:
    builder = example()
    builder.snapshot["records"] = []
    assert unsupported(builder) == ("the snapshot does not hold exactly one record",)


@contract("PKT-11")
@pytest.mark.parametrize("phase", ["prefill", "Decode", "", "verify"])
def test_other_phase_is_unsupported(phase: str, unsupported) -> None:
    builder = example()
    builder.record["phase"] = phase
    assert unsupported(builder) == ("phase is not decode or chained_decode",)


@contract("PKT-11")
@pytest.mark.parametrize("phase", ["decode", "chained_decode"])
def test_decode_phases_are_analysed(phase: str, tmp_path: Path) -> None:
    builder = example()
    builder.record["phase"] = phase
    assert run(builder, tmp_path).analysis.status == "analyzed"


@contract("PKT-37")
@pytest.mark.parametrize(
    ("key", "value"),
    [("batchSize", 0), ("batchSize", 2), ("batchIndex", 1), ("inputWidth", 0), ("inputWidth", 2)],
)
def test_more_than_one_token_is_unsupported(key: str, value: int, unsupported) -> None:
    builder = example()
    builder.record[key] = value
    expected = "batchIndex is not 0" if key == "batchIndex" else f"{key} is not 1"
    assert unsupported(builder) == (expected,)


@contract("PKT-38")
@contract("PKT-70")
@pytest.mark.parametrize("attention", ["sliding", "Full", "", "linear"])
def test_other_attention_is_unsupported(attention: str, unsupported) -> None:
    builder = example()
    builder.packet["geometry"]["attention"] = attention
    assert unsupported(builder) == ("attention is not full",)


@contract("PKT-40")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("isBidirectional", "attention is bidirectional"),
        ("sharesKV", "the layer shares KV"),
        ("mtpEnabled", "MTP is enabled"),
    ],
)
def test_flag_of_the_geometry_is_unsupported(key: str, reason: str, unsupported) -> None:
    builder = example()
    builder.packet["geometry"][key] = True
    assert unsupported(builder) == (reason,)


@contract("PKT-41")
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("sinksPresent", "sinks are present"),
        ("softcapPresent", "a softcap is present"),
        ("spansPresent", "spans are present"),
    ],
)
def test_flag_of_the_record_is_unsupported(key: str, reason: str, unsupported) -> None:
    builder = example()
    builder.record[key] = True
    assert unsupported(builder) == (reason,)


def zeros(heads: int, kv_heads: int, tokens: int, width: int) -> PacketBuilder:
    shapes = {name: (1, kv_heads, 1, width) for name in FILES}
    shapes |= {name: (1, kv_heads, tokens, width) for name in ("storedKeys", "storedValues")}
    shapes |= {name: (1, heads, 1, width) for name in ("queries", "output")}
    payloads = {name: np.zeros(shape, dtype=np.uint16) for name, shape in shapes.items()}
    return bits_packet(payloads, query="float16", storage="float16", out="float16")


@contract("PKT-45")
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((256, 1, 1, 4), id="256 heads"),
        pytest.param((1, 1, 1, 1024), id="width 1024"),
        pytest.param((250, 1, 2000, 100), id="exactly 1e8 terms"),
    ],
)
def test_size_at_its_bound_is_analysed(sizes: tuple[int, int, int, int], tmp_path: Path) -> None:
    analysis = run(zeros(*sizes), tmp_path).analysis
    assert analysis.status == "analyzed"
    assert analysis.geometry is not None
    heads, _, tokens, width = sizes
    assert analysis.geometry.multiply_add_terms == 2 * heads * tokens * width


@contract("PKT-45")
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((257, 1, 1, 4), "more than 256 query heads"),
        ((1, 1, 1, 1025), "head dimension above 1024"),
        ((250, 1, 2001, 100), "more than 100000000 multiply-add terms per reference"),
    ],
)
def test_size_above_its_bound_is_unsupported(
    sizes: tuple[int, int, int, int], reason: str, unsupported
) -> None:
    assert unsupported(zeros(*sizes)) == (reason,)


@contract("PKT-47")
@pytest.mark.parametrize(
    ("backend", "dispatch", "status"),
    [
        ("paged", "paged_segmented_decode", "analyzed"),
        ("paged", "paged_fixed_decode", "analyzed"),
        ("paged", "contiguous_sdpa", "inconclusive"),
        ("contiguous", "contiguous_sdpa", "analyzed"),
        ("contiguous", "paged_fixed_decode", "inconclusive"),
        ("paged", "something_else", "inconclusive"),
    ],
)
def test_dispatch_belongs_to_the_backend(
    backend: str, dispatch: str, status: str, tmp_path: Path
) -> None:
    builder = example()
    builder.packet["identity"]["backend"] = backend
    builder.record["dispatch"] = dispatch
    analysis = run(builder, tmp_path).analysis
    assert analysis.status == status
    if status == "inconclusive":
        assert analysis.inconclusive_reasons == (f"dispatch is not one of {backend}",)


@pytest.fixture
def no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Analyse a packet that admits no reference; it must not even be computed."""

    def fail(*_: Any) -> None:
        raise AssertionError("a reference was computed")

    monkeypatch.setattr(analyzer, "compare_references", fail)

    def check(builder: PacketBuilder):
        found = run(builder, tmp_path / "packet")
        analysis = found.analysis
        assert (analysis.status, found.exit_code) == ("inconclusive", 0), analysis.refusal
        assert analysis.original_query_reference is None
        assert analysis.reference_rounded_to_output_dtype is None
        assert analysis.narrowed_query_counterfactual is None
        assert analysis.additions is not None
        assert analysis.additions.float64_comparison is None
        assert analysis.tensor_nonfinite is not None
        assert analysis.last_row_consistency is not None
        return analysis

    return check


@contract("PKT-48")
@contract("PKT-49")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("forwardSucceeded", False),
        ("selectedForwards", 0),
        ("selectedForwards", 2),
        ("refusals", {"forward_failed": 1}),
        ("sampleOutcome", "not_selected"),
        ("sampleOutcome", "graph_constructed_unconfirmed"),
        ("sampleOutcome", "forward_failed"),
        ("sampleOutcome", "discarded"),
        ("sampleOutcome", "retired_unconfirmed"),
    ],
)
def test_step_that_is_not_confirmed_admits_no_reference(key: str, value: Any, no_reference) -> None:
    builder = example()
    builder.snapshot[key] = value
    analysis = no_reference(builder)
    assert analysis.inconclusive_reasons == (NOT_CONFIRMED,)
    assert analysis.interpretation == NO_INTERPRETATION


@contract("PKT-9")
@contract("PKT-48")
@pytest.mark.parametrize("key", ["seedToken", "targetToken"])
def test_step_without_a_token_admits_no_reference(key: str, no_reference) -> None:
    builder = example()
    del builder.snapshot[key]
    assert no_reference(builder).inconclusive_reasons == (NOT_CONFIRMED,)


@contract("PKT-48")
@pytest.mark.parametrize("status", ["failed", "not_evaluated"])
def test_evaluation_that_is_not_completed_admits_no_reference(status: str, no_reference) -> None:
    builder = example()
    builder.packet["capture"]["evaluationStatus"] = status
    analysis = no_reference(builder)
    assert analysis.inconclusive_reasons == (NOT_COMPLETED,)


@contract("PKT-46")
@contract("PKT-48")
def test_step_of_another_request_admits_no_reference(tmp_path: Path) -> None:
    builder = example()
    builder.snapshot["configuration"]["requestID"] = 42
    found = run(builder, tmp_path)
    assert (found.analysis.status, found.exit_code) == ("refused", 2)
    assert found.analysis.original_query_reference is None


@contract("PKT-48")
@contract("PKT-49")
def test_confirmed_step_is_analysed(tmp_path: Path) -> None:
    found = run(example(), tmp_path)
    assert (found.analysis.status, found.exit_code) == ("analyzed", 0)
    assert found.analysis.inconclusive_reasons == ()
    assert found.analysis.interpretation is None


@contract("PKT-27")
@pytest.mark.parametrize("name", ["queries", "storedKeys", "storedValues"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_input_admits_no_reference(name: str, value: float, no_reference) -> None:
    q, k, v = random_values()
    {"queries": q, "storedKeys": k, "storedValues": v}[name].reshape(-1)[0] = value
    analysis = no_reference(values_packet(q, k, v, np.zeros_like(q)))
    assert analysis.inconclusive_reasons == (NONFINITE_INPUT,)
    expected = {"nan": 0, "positive_infinity": 0, "negative_infinity": 0}
    key = "nan" if value != value else "positive_infinity" if value > 0 else "negative_infinity"
    counts = analysis.tensor_nonfinite[name]
    assert {field: getattr(counts, field) for field in expected} == expected | {key: 1}


@contract("PKT-27")
@contract("PKT-57")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_output_is_reported_and_nothing_is_dropped(value: float, tmp_path: Path) -> None:
    q, k, v = random_values()
    output = np.zeros_like(q)
    output[2, 1] = value
    found = run(values_packet(q, k, v, output), tmp_path)
    assert (found.analysis.status, found.exit_code) == ("inconclusive", 0)
    assert found.analysis.inconclusive_reasons == (NONFINITE_RESULT,)
    assert found.analysis.original_query_reference is not None
    comparison = found.analysis.original_query_reference.comparison
    reasons = [head.undefined_reason for head in comparison.per_head]
    assert reasons == [None, None, "nonfinite values", None]
    worst = comparison.global_
    assert (worst.linf, worst.rmse, worst.relative_l2) == (None, None, None)
    assert worst.undefined_reason == "nonfinite values"


@contract("PKT-52")
@pytest.mark.parametrize("name", ["incomingKeys", "incomingValues"])
def test_mismatched_last_row_is_flagged_and_the_reference_is_still_computed(
    name: str, tmp_path: Path
) -> None:
    builder = example()
    change(builder, name, lambda bits: bits ^ np.uint16(1))
    found = run(builder, tmp_path)
    assert (found.analysis.status, found.exit_code) == ("inconclusive", 0)
    assert found.analysis.inconclusive_reasons == (LAST_ROW_DIFFERS,)
    assert found.analysis.original_query_reference is not None
    rows = found.analysis.last_row_consistency
    assert rows is not None
    counts = (
        rows.stored_keys.mismatched_native_elements,
        rows.stored_values.mismatched_native_elements,
    )
    assert counts == ((8, 0) if name == "incomingKeys" else (0, 8))
    assert rows.stored_keys.compared_native_elements == 8


def change(builder: PacketBuilder, name: str, function) -> None:
    """Replace a payload, and its hash with it."""
    import hashlib

    bits = function(builder.payloads[name])
    builder.payloads[name] = bits
    builder.tensors[name]["sha256"] = hashlib.sha256(bits.tobytes()).hexdigest()


@contract("PKT-52")
def test_signed_zero_of_the_last_row_is_a_mismatch(tmp_path: Path) -> None:
    q, k, v = random_values()
    k[0, -1, 0] = 0.0
    builder = values_packet(q, k, v)

    def negate_zero(bits: np.ndarray) -> np.ndarray:
        bits = bits.copy()
        bits[0, 0, 0, 0] = 0x8000
        return bits

    change(builder, "incomingKeys", negate_zero)
    rows = run(builder, tmp_path).analysis.last_row_consistency
    assert rows is not None
    assert rows.stored_keys.mismatched_native_elements == 1
    assert rows.stored_values.mismatched_native_elements == 0


@contract("PKT-52")
def test_equal_nan_payloads_of_the_last_row_are_equal(no_reference) -> None:
    builder = example()
    for name in ("storedKeys", "incomingKeys"):
        bits = builder.payloads[name].copy()
        bits[0, 0, -1, :2] = (0x7F81, 0xFFC3)
        change(builder, name, lambda _, bits=bits: bits)
    analysis = no_reference(builder)
    assert analysis.last_row_consistency.stored_keys.mismatched_native_elements == 0
    assert analysis.inconclusive_reasons == (NONFINITE_INPUT,)


@contract("PKT-12")
@pytest.mark.parametrize("strides", [[], [0], [-1, 5, 2**40], [1, 1, 1, 1]])
def test_graph_construction_strides_change_nothing(strides: list[int], tmp_path: Path) -> None:
    builder = example()
    before = run(builder, tmp_path / "before").analysis
    builder = example()
    for name in ("queries", "incomingKeys", "incomingValues", "output"):
        builder.record[name]["graphConstructionStrides"] = strides
    after = run(builder, tmp_path / "after").analysis
    assert after.status == "analyzed"
    assert after.original_query_reference == before.original_query_reference
    assert after.tensor_sha256 == before.tensor_sha256
