"""The reference is FP32 softmax attention; faults show in numbers, and no number is a verdict."""

import hashlib
import itertools
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.attention_packet.analyze import Outcome, analyze
from cke.attention_packet.metrics import compare
from cke.schemas.attention_packet import Metrics
from tests.attention_packet.build import (
    FILES,
    attend64,
    bits_of,
    bits_packet,
    example,
    floats_of,
    random_values,
    run,
    values_packet,
)

contract = pytest.mark.contract
DTYPES = ("float16", "bfloat16", "float32")
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def primary(found: Outcome) -> Metrics:
    assert found.analysis.original_query_reference is not None, found.analysis
    return found.analysis.original_query_reference.comparison.global_


@contract("PKT-53")
@pytest.mark.parametrize(
    ("query", "storage", "out"),
    [
        ("float32", "bfloat16", "float32"),
        ("float32", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "float16"),
        ("float32", "float32", "float32"),
    ],
)
def test_exact_output_differs_by_fp32_arithmetic_and_output_rounding(
    query: str, storage: str, out: str, tmp_path: Path
) -> None:
    q, k, v = random_values(3, heads=16, kv_heads=2, width=256, tokens=33)
    found = run(
        values_packet(q, k, v, scale=1 / 16, query=query, storage=storage, out=out), tmp_path
    )
    metrics = primary(found)
    assert metrics.relative_l2 is not None
    assert metrics.relative_l2 < max(EPSILON[out], 1e-6)
    rounded = found.analysis.reference_rounded_to_output_dtype
    assert rounded is not None
    assert rounded.dtype == out
    assert rounded.comparison.global_.relative_l2 is not None
    assert rounded.comparison.global_.relative_l2 <= metrics.relative_l2


@contract("PKT-43")
def test_uniform_softmax_reads_the_kv_head_of_its_group(tmp_path: Path) -> None:
    q = np.zeros((4, 4), np.float32)
    _, k, _ = random_values()
    v = np.stack([np.full((3, 4), 2.0), np.full((3, 4), 5.0)]).astype(np.float32)
    output = np.repeat(np.array([2.0, 2.0, 5.0, 5.0], np.float32), 4).reshape(4, 4)
    found = run(values_packet(q, k, v, output), tmp_path)
    metrics = primary(found)
    assert metrics.linf == pytest.approx(0, abs=1e-6)
    assert found.analysis.original_query_reference is not None
    heads = found.analysis.original_query_reference.comparison.per_head
    assert [head.kv_head for head in heads] == [0, 0, 1, 1]
    assert [head.query_head for head in heads] == [0, 1, 2, 3]


@contract("PKT-45")
def test_long_history_is_analysed(tmp_path: Path) -> None:
    q, k, v = random_values(1, heads=16, kv_heads=2, width=256, tokens=5585)
    k_bits, v_bits = bits_of(k, "bfloat16"), bits_of(v, "bfloat16")
    exact_k, exact_v = floats_of(k_bits, "bfloat16"), floats_of(v_bits, "bfloat16")
    scores = np.einsum("kge,kte->kgt", q.reshape(2, 8, 256).astype(np.float64), exact_k) / 16
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.einsum("kgt,kte->kge", weights, exact_v).reshape(16, 256)
    found = run(values_packet(q, k, v, output, scale=1 / 16), tmp_path)
    metrics = primary(found)
    assert found.analysis.geometry is not None
    assert found.analysis.geometry.multiply_add_terms == 45_752_320
    assert metrics.linf is not None
    assert metrics.linf < 5e-6


def faulty(name: str) -> np.ndarray:
    """The output of attention with one planted fault, over 33 tokens."""
    q, k, v = planted()
    scale = 0.5
    match name:
        case "transposed keys":
            k = k.transpose(0, 2, 1).reshape(k.shape)
        case "interleaved head map":
            order = [0, 2, 1, 3]
            return attend64(q[order], k, v, scale)[order]
        case "dropped last token":
            k, v = k[:, :-1], v[:, :-1]
        case "off-by-one append":
            k, v = np.roll(k, 1, axis=1), v
        case "wrong scale":
            scale = 0.05
    return attend64(q, k, v, scale)


def planted() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries that look for the last token; values are far apart, so that a fault is visible."""
    random = np.random.default_rng(7)
    k = random.standard_normal((2, 16, 16)).astype(np.float32)
    v = (3 * random.standard_normal((2, 16, 16))).astype(np.float32)
    q = np.repeat(k[:, -1], 2, axis=0) * np.float32(2)
    k, v = (floats_of(bits_of(x, "bfloat16"), "bfloat16") for x in (k, v))
    return q, k.astype(np.float32), v.astype(np.float32)


FAULTS = (
    "transposed keys",
    "interleaved head map",
    "dropped last token",
    "off-by-one append",
    "wrong scale",
)


@contract("PKT-43")
@contract("PKT-59")
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_shows_in_the_numbers_and_not_in_the_exit(fault: str, tmp_path: Path) -> None:
    q, k, v = planted()
    right = run(values_packet(q, k, v, scale=0.5), tmp_path / "right")
    wrong = run(values_packet(q, k, v, faulty(fault), scale=0.5), tmp_path / "wrong")
    good, bad = primary(right), primary(wrong)
    assert good.linf is not None
    assert bad.linf is not None
    assert bad.rmse is not None
    assert good.linf < 5e-6
    assert bad.linf > 0.5
    assert bad.rmse > 0.1
    assert (right.exit_code, right.analysis.status) == (wrong.exit_code, wrong.analysis.status)
    assert wrong.exit_code == 0


@contract("PKT-59")
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e20, 3e38])
def test_exit_and_status_do_not_depend_on_the_error(size: float, tmp_path: Path) -> None:
    q, k, v = random_values()
    found = run(values_packet(q, k, v, np.full_like(q, size)), tmp_path)
    assert (found.exit_code, found.analysis.status) == (0, "analyzed")


@contract("PKT-20")
def test_shortened_history_is_refused(tmp_path: Path) -> None:
    builder = example()
    path = builder.write(tmp_path)
    keys = builder.payloads["storedKeys"][:, :, :-1]
    tmp_path.joinpath("stored-keys.bin").write_bytes(keys.tobytes())
    assert analyze(path).exit_code == 2


@contract("PKT-61")
def test_wrong_history_that_agrees_with_itself_is_analysed(tmp_path: Path) -> None:
    q, k, v = random_values(4, tokens=9)
    k[:, 2], v[:, 2] = k[:, 3].copy(), v[:, 3].copy()
    found = run(values_packet(q, k, v), tmp_path)
    assert (found.analysis.status, found.exit_code) == ("analyzed", 0)
    assert "earlier missing history" in " ".join(found.analysis.limitations)


def expected_metrics(values: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    errors = [float(a) - float(b) for a, b in zip(values.ravel(), reference.ravel(), strict=True)]
    norm = math.sqrt(math.fsum(float(b) ** 2 for b in reference.ravel()))
    size = math.sqrt(math.fsum(error**2 for error in errors))
    return max(map(abs, errors)), size / math.sqrt(len(errors)), size / norm


@contract("PKT-53")
def test_metrics_are_those_of_their_elements() -> None:
    random = np.random.default_rng(2)
    values, reference = random.standard_normal((2, 4, 6)).astype(np.float32)
    found = compare(values, reference, 2)
    parts = [(found.global_, values, reference)]
    parts += [(head, values[i], reference[i]) for i, head in enumerate(found.per_head)]
    for metrics, left, right in parts:
        assert (metrics.linf, metrics.rmse, metrics.relative_l2) == pytest.approx(
            expected_metrics(left, right), rel=1e-12
        )
    assert found.global_.linf == max(head.linf for head in found.per_head if head.linf is not None)


@contract("PKT-57")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_nonfinite_comparison_is_null_with_its_reason(value: float, side: int) -> None:
    pair = np.ones((2, 3, 4), np.float32)
    pair[side, 1, 2] = value
    found = compare(pair[0], pair[1], 1)
    assert found.global_ == Metrics(
        linf=None, rmse=None, relative_l2=None, undefined_reason="nonfinite values"
    )
    assert [head.undefined_reason for head in found.per_head] == [None, "nonfinite values", None]


@contract("PKT-57")
@pytest.mark.parametrize("out", DTYPES)
def test_signalling_nan_of_the_output_is_reported_without_a_warning(
    out: str, tmp_path: Path
) -> None:
    builder = example(out=out)
    bits = builder.payloads["output"].copy()
    bits[0, 0, 0, 0] = {"float16": 0x7C01, "bfloat16": 0x7F81, "float32": 0x7F80_0001}[out]
    builder.payloads["output"] = bits
    builder.tensors["output"]["sha256"] = hashlib.sha256(bits.tobytes()).hexdigest()
    found = run(builder, tmp_path).analysis
    assert found.inconclusive_reasons == ("nonfinite output or FP32 reference",)


@contract("PKT-58")
def test_zero_reference_has_no_relative_error() -> None:
    found = compare(np.full((1, 4), 1e-30, np.float32), np.zeros((1, 4), np.float32), 1).global_
    assert found.relative_l2 is None
    assert found.undefined_reason == "zero reference norm with nonzero error"
    assert found.linf == pytest.approx(1e-30)
    assert found.rmse == pytest.approx(1e-30)


@contract("PKT-58")
def test_zero_against_zero_is_zero() -> None:
    found = compare(np.zeros((1, 4), np.float32), -np.zeros((1, 4), np.float32), 1).global_
    assert found == Metrics(linf=0.0, rmse=0.0, relative_l2=0.0, undefined_reason=None)


@contract("PKT-56")
@pytest.mark.parametrize(("query", "storage"), list(itertools.product(DTYPES, DTYPES)))
def test_counterfactual_only_for_fp32_queries_over_16_bit_storage(
    query: str, storage: str, tmp_path: Path
) -> None:
    found = run(example(query=query, storage=storage), tmp_path).analysis
    narrowed = found.narrowed_query_counterfactual
    assert (narrowed is not None) == (query == "float32" and storage != "float32")
    if narrowed:
        assert narrowed.dtype == storage
        assert "counterfactual" in narrowed.label
        assert "not the primary" in narrowed.label


@contract("PKT-56")
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_counterfactual_explains_a_backend_that_narrows(storage: str, tmp_path: Path) -> None:
    q, k, v = random_values(5, heads=4, width=64, tokens=40)
    exact = [floats_of(bits_of(x, storage), storage) for x in (q, k, v)]
    found = run(values_packet(q, k, v, attend64(*exact, 0.25), storage=storage), tmp_path)
    narrowed = found.analysis.narrowed_query_counterfactual
    assert narrowed is not None
    original, explained = primary(found).linf, narrowed.comparison.global_.linf
    assert original is not None
    assert explained is not None
    assert explained < 5e-6 < 1e-5 < original
    difference = narrowed.difference_from_original_reference.global_.linf
    assert difference == pytest.approx(original, abs=1e-5)
    rounding = narrowed.query_rounding_difference.global_.linf
    assert rounding == np.abs(exact[0] - q.astype(np.float64)).max()


@contract("PKT-29")
def test_queries_are_compared_as_captured(tmp_path: Path) -> None:
    """The primary takes FP32 Q as it is, even when the storage is bfloat16."""
    q, k, v = random_values(6, heads=4, width=64, tokens=40)
    metrics = primary(run(values_packet(q, k, v), tmp_path))
    assert metrics.linf is not None
    assert metrics.linf < 2e-6


@contract("PKT-55")
def test_rounded_reference_is_a_comparison_of_its_own(tmp_path: Path) -> None:
    q, k, v = random_values(8, heads=4, width=64, tokens=40)
    found = run(values_packet(q, k, v, out="bfloat16"), tmp_path).analysis
    assert found.original_query_reference is not None
    assert found.reference_rounded_to_output_dtype is not None
    original = found.original_query_reference.comparison.global_
    rounded = found.reference_rounded_to_output_dtype.comparison.global_
    assert original.rmse is not None
    assert rounded.rmse is not None
    assert rounded.rmse < original.rmse / 10
    assert original.rmse > 1e-5


@contract("PKT-64")
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_large_scores_stay_finite(size: float, tmp_path: Path) -> None:
    q = np.full((2, 4), size, np.float32)
    k = np.tile(np.array([[1.0], [-1.0], [0.5]], np.float32), (1, 1, 4))
    v = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    found = run(values_packet(q, k, v, np.tile(v[0, 0], (2, 1)), scale=1.0), tmp_path)
    assert found.analysis.status == "analyzed"
    assert primary(found).linf == 0.0


@contract("PKT-64")
def test_equal_scores_give_the_mean_of_the_values(tmp_path: Path) -> None:
    _, k, v = random_values(9, tokens=50)
    q = np.zeros((4, 4), np.float32)
    stored = floats_of(bits_of(v, "bfloat16"), "bfloat16")
    output = np.repeat(stored.mean(axis=1), 2, axis=0)
    assert primary(run(values_packet(q, k, v, output), tmp_path)).linf == pytest.approx(0, abs=1e-6)


@contract("PKT-64")
@pytest.mark.parametrize("storage", DTYPES)
def test_one_token_gives_its_values_exactly(storage: str, tmp_path: Path) -> None:
    q, k, v = random_values(10, tokens=1)
    stored = floats_of(bits_of(v, storage), storage)
    output = np.repeat(stored[:, 0], 2, axis=0)
    metrics = primary(run(values_packet(q, k, v, output, storage=storage), tmp_path))
    assert (metrics.linf, metrics.rmse, metrics.relative_l2) == (0.0, 0.0, 0.0)


@contract("PKT-57")
def test_reference_that_overflows_is_counted_and_inconclusive(tmp_path: Path) -> None:
    q = np.full((2, 4), 3e38, np.float32)
    k = np.tile(np.array([[1.0], [-1.0]], np.float32), (1, 1, 4))
    v = np.ones((1, 2, 4), np.float32)
    found = run(values_packet(q, k, v, np.ones_like(q), storage="float32", scale=1.0), tmp_path)
    assert found.exit_code == 0
    assert found.analysis.inconclusive_reasons == ("nonfinite output or FP32 reference",)
    assert found.analysis.original_query_reference is not None
    counts = found.analysis.original_query_reference.intermediate_nonfinite
    assert (counts.positive_infinity, counts.negative_infinity) == (2, 2)
    assert counts.nan > 0


def test_float64_addition_is_labelled_and_smaller_than_the_fp32_error(tmp_path: Path) -> None:
    q, k, v = random_values(11, heads=4, width=64, tokens=40)
    found = run(values_packet(q, k, v), tmp_path).analysis
    assert found.additions is not None
    part = found.additions.float64_comparison
    assert part is not None
    assert "added by CKE" in part.label
    assert "never" not in part.label
    exact = part.output_difference.global_.linf
    assert exact is not None
    assert exact <= 2.0**-24 * 4
    assert part.reference_difference.global_.linf is not None
    assert 0 < part.reference_difference.global_.linf < 2e-6


def zeros_packet(heads: int, kv_heads: int, tokens: int, width: int, dtype: str) -> Any:
    kind = np.uint32 if dtype == "float32" else np.uint16
    shapes = {name: (1, kv_heads, 1, width) for name in FILES}
    shapes |= {name: (1, kv_heads, tokens, width) for name in ("storedKeys", "storedValues")}
    shapes |= {name: (1, heads, 1, width) for name in ("queries", "output")}
    payloads = {name: np.zeros(shape, dtype=kind) for name, shape in shapes.items()}
    return bits_packet(payloads, query=dtype, storage=dtype, out=dtype)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((8, 8, 8190, 128, "float16"), id="32 MiB, float16"),
        pytest.param((8, 1, 16374, 256, "float32"), id="32 MiB, float32"),
        pytest.param((1, 1, 8_388_606, 1, "bfloat16"), id="32 MiB of one-channel rows"),
        pytest.param((16, 2, 5585, 256, "bfloat16"), id="T 5585"),
    ],
)
def test_memory_is_at_most_four_times_the_payload(sizes: Any, tmp_path: Path) -> None:
    builder = zeros_packet(*sizes)
    size = builder.packet["capture"]["tensorPayloadBytes"]
    path = builder.write(tmp_path)
    del builder
    tracemalloc.start()
    try:
        status = analyze(path).analysis.status
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status == "analyzed"
    assert peak <= 4 * size
