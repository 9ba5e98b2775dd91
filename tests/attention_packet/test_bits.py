"""Native bits are kept: every pattern of both 16-bit types promotes and comes back."""

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cke.attention_packet import bits, payload
from cke.attention_packet.analyze import analyze
from tests.attention_packet.build import example

contract = pytest.mark.contract
ALL = np.arange(1 << 16, dtype=np.uint16)
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def finite(dtype: str) -> np.ndarray:
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
    return (ALL & 0x7FFF) < infinity


@contract("PKT-24")
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_every_finite_pattern_promotes_to_its_value(dtype: str) -> None:
    chosen = ALL[finite(dtype)]
    values = bits.promote(chosen, dtype)
    expected = chosen.view(TYPES[dtype]).astype(np.float64)
    assert values.dtype == np.float32
    assert np.array_equal(values.astype(np.float64), expected)
    assert np.array_equal(np.signbit(values), (chosen & 0x8000) != 0)


@contract("PKT-24")
@contract("PKT-25")
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_every_pattern_comes_back(dtype: str) -> None:
    assert np.array_equal(bits.narrow(bits.promote(ALL, dtype), dtype), ALL)


@contract("PKT-24")
def test_float32_is_not_converted() -> None:
    raw = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    raw[:4] = (0x7F80_0001, 0x8000_0000, 0x0000_0001, 0xFFC0_0123)
    assert np.array_equal(bits.promote(raw, "float32").view(np.uint32), raw)


@contract("PKT-25")
@pytest.mark.parametrize(
    ("dtype", "native", "wide"),
    [
        ("float16", 0x8000, 0x8000_0000),
        ("float16", 0x7C01, 0x7F80_2000),
        ("float16", 0x7E00, 0x7FC0_0000),
        ("float16", 0xFDFF, 0xFFBF_E000),
        ("float16", 0xFC00, 0xFF80_0000),
        ("bfloat16", 0x8000, 0x8000_0000),
        ("bfloat16", 0x7F81, 0x7F81_0000),
        ("bfloat16", 0xFFC3, 0xFFC3_0000),
        ("bfloat16", 0x7F80, 0x7F80_0000),
    ],
)
def test_promotion_keeps_sign_and_nan_payload(dtype: str, native: int, wide: int) -> None:
    promoted = bits.promote(np.array([native], dtype=np.uint16), dtype).view(np.uint32)
    assert hex(int(promoted[0])) == hex(wide)


@contract("PKT-55")
@pytest.mark.parametrize("dtype", sorted(TYPES))
@given(pattern=st.integers(0, 2**32 - 1))
def test_rounding_is_to_nearest_even(dtype: str, pattern: int) -> None:
    value = np.array([pattern], dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        expected = value.astype(TYPES[dtype]).view(np.uint16)
    if np.isnan(value[0]):
        narrowed = bits.narrow(value, dtype)
        assert np.isnan(bits.promote(narrowed, dtype)[0])
        assert bool(narrowed[0] & 0x8000) == bool(pattern >> 31)
    else:
        assert bits.narrow(value, dtype)[0] == expected[0]


@contract("PKT-55")
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_ties_round_to_even(dtype: str) -> None:
    shift = {"float16": 13, "bfloat16": 16}[dtype]
    chosen = ALL[finite(dtype) & ((ALL & 0x7FFF) >= 0x0400)]
    tie = (bits.promote(chosen, dtype).view(np.uint32) + np.uint32(1 << (shift - 1))).view(
        np.float32
    )
    assert np.array_equal(bits.narrow(tie, dtype), chosen + (chosen & 1))


@contract("PKT-55")
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_nan_whose_payload_is_cut_off_stays_nan(dtype: str) -> None:
    value = np.array([0x7F80_0001, 0xFF80_0001], dtype=np.uint32).view(np.float32)
    assert np.isnan(bits.promote(bits.narrow(value, dtype), dtype)).all()


@contract("PKT-27")
@contract("PKT-51")
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_every_nonfinite_pattern_is_counted(dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        values = ALL.view(TYPES[dtype]).astype(np.float64)
    counts = bits.count_nonfinite(ALL, dtype)
    assert counts.nan == np.isnan(values).sum() > 0
    assert (counts.positive_infinity, counts.negative_infinity) == (1, 1)
    assert counts.total == (~np.isfinite(values)).sum()


@contract("PKT-51")
def test_nonfinite_values_are_counted_across_blocks() -> None:
    values = np.zeros(200_000, dtype=np.float32)
    values[[0, 65_535, 65_536, 199_999]] = (np.nan, np.inf, -np.inf, np.inf)
    for counts in (
        bits.count_nonfinite(values.view(np.uint32), "float32"),
        bits.count_nonfinite_values(values[:100], values[100:]),
    ):
        assert (counts.nan, counts.positive_infinity, counts.negative_infinity) == (1, 2, 1)


@contract("PKT-26")
def test_native_bytes_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, payload.NativeTensor] = {}
    real = payload.read_payloads

    def read(*arguments):
        kept.update(real(*arguments))
        return kept

    monkeypatch.setattr("cke.attention_packet.analyze.read_payloads", read)
    builder = example()
    analysis = analyze(builder.write(tmp_path)).analysis
    assert analysis.status == "analyzed"
    assert len(kept) == 6
    for name, tensor in kept.items():
        after = hashlib.sha256(tensor.bits.tobytes()).hexdigest()
        assert after == hashlib.sha256(tensor.raw).hexdigest() == builder.tensors[name]["sha256"]
        assert not tensor.bits.flags.writeable
