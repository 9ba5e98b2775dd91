"""Values: the bits of the gguf package, one rounding, transforms, fused and tied weights."""

import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from cke.errors import CkeError, MissingInputError, Span
from cke.runtime.weights import Weights, open_model
from cke.runtime.weights.dequantise import ALIGNMENT, dequantise, round_once
from cke.schemas.bindings import Transform, WeightBinding
from cke.schemas.ir import TensorType
from tests.runtime.weights_files import stored, write_folder, write_gguf

HERE = Span("x.circuit", 1, 1, 1, 2)
BF16 = np.dtype(ml_dtypes.bfloat16)
STORAGES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def bits(array: np.ndarray) -> list[int]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").ravel().tolist()


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def binding(
    semantic: str, shape: tuple[int, ...], *sources: str, dtype: str = "f32", **more: Any
) -> WeightBinding:
    steps = tuple(Transform(kind=kind, arguments=given) for kind, given in more.get("steps", ()))
    return WeightBinding(
        semantic=semantic,
        type=TensorType(axes=tuple("ABCDEF"[: len(shape)]), shape=shape, dtype=dtype),
        sources=sources,
        transforms=steps,
        tied_to=more.get("tied_to"),
        span=HERE,
    )


def folder(tmp_path: Path, **tensors: np.ndarray) -> Path:
    write_folder(tmp_path / "model", {})
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float64], ids=str)
@pytest.mark.parametrize("storage", STORAGES)
def test_every_storage_has_the_bits_of_the_gguf_package(
    storage: str, dtype: Any, tmp_path: Path
) -> None:
    array = random(300, 512)
    model = open_model(write_gguf(tmp_path / "x.gguf", {"t": (array, storage)}))
    kind = gguf.GGMLQuantizationType[storage]
    raw = stored(array, kind)
    expected = raw if storage == "F32" else gguf.quants.dequantize(raw, kind)
    got = dequantise(model.located["t"], np.dtype(dtype))
    assert got.dtype == dtype
    assert got.shape == (300, 512)
    assert bits(got) == bits(expected.astype(dtype))


@pytest.mark.parametrize("storage", ["Q4_0", "Q4_1", "Q8_0"])
def test_any_bytes_decode_to_the_bits_of_the_gguf_package(storage: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[storage]
    block, width = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(5).integers(0, 256, (4096, width), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
        got = dequantise(open_model(tmp_path / "x.gguf").located["t"], np.dtype(np.float32))
    assert got.shape == (4096, block)
    finite = ~np.isnan(expected)
    assert (np.isnan(got) == ~finite).all()
    assert bits(got[finite]) == bits(expected[finite])


@settings(max_examples=300)
@given(st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_f64_is_rounded_to_bf16_once(value: float) -> None:
    with np.errstate(over="ignore"):
        got = float(round_once(np.array([value]), BF16)[0])
        near = np.array([value]).astype(np.float32).astype(BF16)
    candidates = [float(near[0])]
    for step in (-1, 1):
        shifted = (near.view(np.int16) + np.int16(step)).view(BF16)
        candidates.append(float(shifted[0]))
    finite = [item for item in candidates if np.isfinite(item)]
    if not np.isfinite(got) or not finite:
        assert abs(value) >= 3.38e38
        return
    best = min(abs(Fraction(item) - Fraction(value)) for item in finite)
    assert abs(Fraction(got) - Fraction(value)) == best


def test_a_tie_broken_below_f32_is_not_rounded_twice() -> None:
    value = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, 1 + 2**-8])
    assert round_once(value, BF16).astype(np.float64).tolist() == [1 + 2**-7, 1.0, 1.0]
    assert value.astype(BF16)[0] == 1.0, "the cast of ml_dtypes rounds twice"


def test_transforms_move_elements_exactly_and_compute_in_f64(tmp_path: Path) -> None:
    array = random(6, 4)
    model = open_model(folder(tmp_path, t=array, w=np.abs(array) + 1))
    weights = Weights(
        model,
        [
            binding("moved", (4, 3, 2), "t", steps=[
                ("reshape", {"shape": (3, 2, 4)}), ("transpose", {"axes": (2, 0, 1)})]),
            binding("cut", (2, 4), "t", steps=[("slice", {"axis": 0, "start": 1, "stop": 3})]),
            binding("stacked", (2, 6, 4), "t", "w", steps=[("stack", {"axis": 0})]),
            binding("inner", (6, 2, 4), "t", "w", steps=[("stack", {"axis": 1})]),
            binding("offset", (6, 4), "t", steps=[("add", {"value": -1.0})]),
            binding("log", (6, 4), "w", steps=[("negate", {}), ("negate", {}), ("log", {})]),
        ],
    )  # fmt: skip
    positive = np.abs(array) + 1
    assert bits(weights["moved"]) == bits(array.reshape(3, 2, 4).transpose(2, 0, 1))
    assert bits(weights["cut"]) == bits(array[1:3])
    assert bits(weights["stacked"]) == bits(np.stack([array, positive]))
    assert bits(weights["inner"]) == bits(np.stack([array, positive], axis=1))
    assert bits(weights["offset"]) == bits((array.astype(np.float64) - 1).astype(np.float32))
    assert bits(weights["log"]) == bits(np.log(positive.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_fused_weights_are_the_members_joined(dtype: str, tmp_path: Path) -> None:
    array = random(64, 64)
    path = write_gguf(tmp_path / "x.gguf", {"q": (array, "Q4_1"), "k": (array[:32], "F32")})
    weights = Weights(
        open_model(path), [binding("q", (64, 64), "q"), binding("k", (32, 64), "k")], dtype
    )
    fused = weights.fused(("q", "k"))
    assert bits(fused) == bits(np.concatenate([weights["q"], weights["k"]]))
    assert fused.ctypes.data % ALIGNMENT == 0
    beside = weights.fused(("q", "q"), axis=1)
    assert bits(beside) == bits(np.concatenate([weights["q"], weights["q"]], axis=1))


def test_a_tied_weight_is_the_one_it_is_tied_to(tmp_path: Path) -> None:
    array = random(4, 4)
    weights = Weights(
        open_model(folder(tmp_path, t=array)),
        [binding("embed", (4, 4), "t"), binding("head", (4, 4), tied_to="embed")],
    )
    assert weights.canonical("head") == "embed"
    assert bits(weights["head"]) == bits(array)


def test_decoding_needs_little_more_than_the_result(tmp_path: Path) -> None:
    array = np.zeros((2048, 4096), np.float32)
    model = open_model(write_gguf(tmp_path / "x.gguf", {"t": (array, "Q4_1")}))
    tracemalloc.start()
    dequantise(model.located["t"], np.dtype(np.float32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * array.nbytes


@pytest.mark.parametrize(
    ("array", "storage"),
    [(np.ones(4, np.int32), "I32"), (np.ones(4, np.bool_), "BOOL"), (np.ones(4, np.uint8), "U8")],
)
def test_weights_that_are_no_floats_are_refused(
    array: np.ndarray, storage: str, tmp_path: Path
) -> None:
    model = open_model(folder(tmp_path, t=array))
    with pytest.raises(CkeError) as caught:
        dequantise(model.located["t"], np.dtype(np.float32))
    assert str(caught.value) == (
        f"model.safetensors: `t`: error[CKE430]: expected float or quantised weights, got storage "
        f"{storage}\n"
        "  note: weights may be stored as F64, F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, "
        "Q3_K, Q4_K, Q5_K, Q6_K\n"
        "  help: convert the tensor to one of these, or ignore it by name"
    )


def test_a_file_that_changed_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, t=random(8))
    model = open_model(path)
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CkeError) as caught:
        dequantise(model.located["t"], np.dtype(np.float32))
    assert str(caught.value) == (
        "model.safetensors: `t`: error[CKE407]: the file changed after its header was read\n"
        "  help: leave the weights file alone while the model is in use, and open it again"
    )
    (path / "model.safetensors").unlink()
    with pytest.raises(MissingInputError, match=r"CKE407.*cannot be read: no such file"):
        dequantise(model.located["t"], np.dtype(np.float32))


def test_a_circuit_reads_small_tensors_only(tmp_path: Path) -> None:
    model = open_model(
        folder(tmp_path, t=np.array([1.5, 2.5], np.float32), big=random(1 << 11, 1 << 10))
    )
    assert model.values("t") == [1.5, 2.5]
    with pytest.raises(CkeError) as caught:
        model.values("none")
    assert str(caught.value) == (
        "model: `none`: error[CKE401]: expected a tensor of at most 1048576 elements, got none\n"
        "  help: a circuit may read small tensors only"
    )
    with pytest.raises(CkeError, match=r"got one of shape \[2048, 1024\]"):
        model.values("big")
