"""The integer path: its arithmetic, what it discloses, and that it is what llama.cpp computes."""

import math
from pathlib import Path

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from cke.api import load
from cke.api.fidelity import open_subject, quantise
from cke.errors import CkeError
from cke.fidelity.integer_activations import (
    PARAMETER,
    SPREAD,
    IntegerWeight,
    integer_linear,
    integer_weight,
    quantised_rows,
)
from cke.fidelity.leaderboard import Entry, leaderboard
from cke.fidelity.score import score
from cke.fidelity.subject import Subject
from tests.fidelity.conftest import TIMES, Tiny
from tests.models import TinyModel


def q8_0(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The definition: 32 values, an f16 scale, codes rounded away from zero at a half."""
    parts = rows.reshape(len(rows), -1, 32)
    exact = np.abs(parts).max(-1) / np.float32(127)
    scaled = parts * (np.float32(1) / exact)[..., None]
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return codes.astype(np.int64), exact.astype(np.float16)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_product_is_that_of_whole_numbers(kind: str) -> None:
    from cke.fidelity.candidate_formats import FORMATS

    random = np.random.default_rng(0)
    x = random.normal(size=(5, 96)).astype(np.float32)
    form = FORMATS[kind]
    values = form.decode(form.encode(random.normal(size=(7, 96)).astype(np.float32), 32))
    weight = integer_weight(values, 1, kind)
    assert weight is not None
    np.testing.assert_array_equal(
        (np.asarray(weight.codes, np.float32) * np.asarray(weight.scales)[..., None]).reshape(
            7, 96
        ),
        values,
    )
    codes, scales = q8_0(x)
    ours, found = quantised_rows(jnp.asarray(x))
    np.testing.assert_array_equal(np.asarray(ours), codes)
    np.testing.assert_array_equal(np.asarray(found), scales.astype(np.float32))
    sums = np.einsum("nbi,obi->nob", codes, np.asarray(weight.codes, np.int64))
    factors = scales.astype(np.float64)[:, None] * np.asarray(weight.scales, np.float64)[None]
    expected = (sums * factors).sum(-1)
    y = np.asarray(integer_linear(jnp.asarray(x), weight))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-5)
    assert float(np.abs(y - x @ values.T).max()) > 1e-3


def test_weights_of_another_grid_are_no_integers() -> None:
    assert integer_weight(np.random.default_rng(0).normal(size=(2, 64)), 1, "q8_0") is None


def test_spread_bounds_every_block() -> None:
    block = np.zeros(32)
    block[3] = -5.0
    assert np.abs(block).max() / math.sqrt(np.mean(block**2)) == pytest.approx(SPREAD)


@pytest.fixture(scope="module")
def candidate(tiny: Tiny) -> Path:
    folder = tiny.root / "q8_0"
    if not folder.is_dir():
        quantise(load(tiny.model), "q8_0", folder)
    return folder


@pytest.mark.slow
@pytest.mark.contract("LAW-17.4", "LAW-17.5", "LAW-17.8", "LAW-10.3")
def test_rounded_activations_are_disclosed_and_marked_on_the_board(
    tiny: Tiny, candidate: Path, tmp_path: Path
) -> None:
    subjects = {
        "float": open_subject(candidate),
        "integer": open_subject(candidate, activations="q8_0"),
    }
    assert subjects["float"].inspection["substitutions"] == []
    (entry,) = subjects["integer"].inspection["substitutions"]
    assert entry["parameter"] == PARAMETER
    assert (entry["affected_layers"], entry["scored_layers"]) == (14, 15)
    assert any(
        isinstance(weight, IntegerWeight)
        for found in subjects["integer"].weights.values()
        for weight in found.values()
    )
    reports = {}
    for name, subject in subjects.items():
        subject.identity = msgspec.structs.replace(subject.identity, name=name)
        reports[name] = score(
            tiny.capture,
            tiny.suite,
            lambda found=subject: found,  # type: ignore[misc]
            tmp_path / name,
            clock=lambda: TIMES["int8"],
        )
    assert reports["integer"]["mean_kld"] > 1.5 * reports["float"]["mean_kld"] > 0
    (lines,) = leaderboard([Entry(report=r, compliant=True) for r in reports.values()]).values()
    assert [(line.candidate, line.mark, line.rank) for line in lines] == [
        ("float", "", 1),
        ("integer", "†", 1),
    ]
    assert f"{PARAMETER} substituted" in lines[1].note


def test_model_without_such_weights_has_no_integer_path(tiny: Tiny) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE878\]: no linear layer is stored in q8_0 or"):
        open_subject(tiny.root / "int8", activations="q8_0")


def _logits(subject: Subject, tokens: np.ndarray) -> np.ndarray:
    return np.asarray(subject.head.logits(subject.hidden(tokens)))


@pytest.mark.slow
@pytest.mark.oracle_llamacpp
def test_integer_path_is_closer_to_llamacpp_than_the_float_path(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    from cke.oracles.gguf_quantise import quantise_gguf
    from cke.oracles.llamacpp import LlamaCppOracle
    from cke.runtime.schedule import CaptureRequest

    folder = tiny_model("llama", hidden_size=64, intermediate_size=96)
    path = quantise_gguf(folder, "q8_0", tmp_path / "q8_0.gguf")
    tokens = np.arange(3, 15, dtype=np.int32)
    oracle = LlamaCppOracle(path)
    (theirs,) = oracle.logits(CaptureRequest(tokens=(tuple(map(int, tokens)),)))[0]
    oracle.close()
    errors = [
        float(np.abs(_logits(open_subject(path, activations=kind), tokens) - theirs).max())
        for kind in ("float", "q8_0")
    ]
    assert errors[1] < 0.1 * errors[0]
