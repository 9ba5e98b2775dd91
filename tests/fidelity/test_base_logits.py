"""Base-logits files of llama.cpp: the layout, the tool's own mean, and what 16 bits cost."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.cli import main
from cke.errors import CkeError
from cke.fidelity.base_logits import CLAMP, LACKS, BaseFile, read_base, score_base
from cke.fidelity.laws import laws
from cke.schemas.reading import read_json
from tests.fidelity.conftest import Tiny

FOLDER = Path(__file__).parent.parent / "fixtures" / "base_logits"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))


@pytest.fixture(scope="module")
def base() -> BaseFile:
    return read_base(FOLDER / "base.dat")


@pytest.fixture(scope="module")
def logits() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "logits.npz") as found:
        return dict(found)


def report_of(base: BaseFile, logits: np.ndarray) -> dict[str, Any]:
    chunks = iter(logits)

    def logits_of(tokens: np.ndarray) -> np.ndarray:
        whole = np.zeros((len(tokens), logits.shape[-1]), np.float32)
        whole[base.first : base.first + base.positions] = next(chunks)
        return whole

    return score_base(base, logits_of, "candidate")


def test_stored_values_are_those_of_the_model_to_16_bits(
    base: BaseFile, logits: dict[str, np.ndarray]
) -> None:
    assert (base.tokens.shape, base.vocabulary, base.first, base.positions) == ((5, 64), 96, 32, 31)
    stored = np.stack(list(base.log_probabilities()))
    exact = log_softmax(logits["reference"])
    cut = np.maximum(exact, exact.max(-1, keepdims=True) - CLAMP)
    assert float(np.abs(stored - cut).max()) <= CLAMP / 65535 / 2 + 4e-6


def test_mean_is_the_tools_own(base: BaseFile, logits: dict[str, np.ndarray]) -> None:
    text = FOLDER.joinpath("tool.txt").read_text("utf-8")
    found = re.search(r"Mean +KLD: +([0-9.]+)", text)
    top = re.search(r"Same top p: +([0-9.]+)", text)
    assert found is not None
    assert top is not None
    report = report_of(base, logits["candidate"])
    # the tool adds f32 log-probabilities of its own batch; twelve digits are printed
    assert abs(report["mean_kld_as_the_tool_sums"] - float(found[1])) < 1e-8
    assert report["num_positions"] == 155
    assert round(100 * report["top1_agreement"], 3) == float(top[1])


def test_sixteen_bits_explain_the_distance_to_the_exact_mean(
    base: BaseFile, logits: dict[str, np.ndarray]
) -> None:
    first, second = (log_softmax(logits[name]) for name in ("reference", "candidate"))
    terms = np.exp(first) * (first - second)
    exact = float(terms.sum(-1).mean())
    step = (first.max(-1) - first.min(-1)) / 65535
    # half a step of every log-probability, in the weight and in the difference
    explained = float(
        ((np.exp(first) * (np.abs(first - second) + 1)).sum(-1) * (step / 2 + 1e-6)).mean()
    )
    report = report_of(base, logits["candidate"])
    for name in ("mean_kld", "mean_kld_as_the_tool_sums"):
        assert 0 < abs(report[name] - exact) < explained < 2e-3 * exact
    zero = report_of(base, logits["reference"])
    assert 0 < zero["mean_kld"] < 1e-8
    assert zero["negative_positions_as_the_tool_sums"] > 0


def test_report_is_exploratory_and_names_what_it_lacks(
    base: BaseFile, logits: dict[str, np.ndarray]
) -> None:
    report = report_of(base, logits["candidate"])
    assert (report["exploratory"], report["authoritative"]) == (True, False)
    assert report["lacks"] == LACKS
    assert {int(name) for name in LACKS} <= {item.number for item in laws().laws}
    for law in ("1", "3", "5", "7", "10", "16"):
        assert law in LACKS


def test_verb_scores_the_tokens_of_the_file(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    small = FOLDER.joinpath("base.dat").read_bytes()
    path = tmp_path / "base.dat"
    # the same file for a vocabulary of 64: the model's, two chunks of 8 tokens
    tokens = np.arange(16, dtype=np.int32)
    header = small[:8] + np.array([8, 64, 2], np.int32).tobytes() + tokens.tobytes()
    row = np.array([1e-3, -8.0], np.float32).tobytes() + np.arange(64, dtype=np.uint16).tobytes()
    path.write_bytes(header + row * 6)
    command = ["fidelity", "base-logits", str(tiny.model), "--base", str(path), "--out", str(out)]
    assert main(command) == 0
    assert "(exploratory)" in capsys.readouterr().out
    report = read_json(out)
    assert (report["num_positions"], report["chunks"]) == (6, 2)
    assert report["mean_kld"] > 0


def broken(name: str, content: bytes) -> bytes:
    changes = {
        "other magic": b"_logits?" + content[8:],
        "cut": content[:-2],
        "longer": content + b"\0\0",
        "header only": content[:14],
        "huge": content[:8] + np.array([1 << 30, 96, 1 << 20], np.int32).tobytes() + content[20:],
        "negative": content[:8] + np.array([64, -96, 5], np.int32).tobytes() + content[20:],
        "token": content[:20] + np.array([96], np.int32).tobytes() + content[24:],
    }
    return changes[name]


@pytest.mark.parametrize(
    "name", ["other magic", "cut", "longer", "header only", "huge", "negative", "token"]
)
def test_file_that_is_not_whole_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "base.dat"
    path.write_bytes(broken(name, FOLDER.joinpath("base.dat").read_bytes()))
    with pytest.raises(CkeError, match=r"error\[CKE873\]"):
        read_base(path)


def test_model_of_a_smaller_vocabulary_is_refused(base: BaseFile) -> None:
    with pytest.raises(CkeError, match=r"error\[CKE872\]: the file has a vocabulary of 96, the"):
        score_base(base, lambda tokens: np.zeros((len(tokens), 64), np.float32), "small")
