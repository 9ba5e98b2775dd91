"""K formats: written by llama.cpp's quantiser, read by our loader, closer with more bits."""

from pathlib import Path

import numpy as np
import pytest

from cke.api.fidelity import open_subject, quantise_to
from cke.errors import CkeError
from cke.fidelity.plan import CandidatePlan
from cke.fidelity.subject import Subject
from tests.models import TinyModel

pytestmark = [pytest.mark.slow, pytest.mark.oracle_llamacpp]
TOKENS = np.arange(3, 12, dtype=np.int32)
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "head_dim": 64,
    "vocab_size": 64,
}


def kinds(subject: Subject) -> set[str]:
    return {layer["format"] for layer in subject.inspection["layers"]}


def logits(subject: Subject) -> np.ndarray:
    return np.asarray(subject.head.logits(subject.hidden(TOKENS)))


def test_k_formats_are_read_and_order_by_their_bits(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = tiny_model("llama", **WIDE)
    exact = logits(open_subject(folder))
    errors = []
    for name, stored in (("q4_k_s", "Q4_K"), ("q5_k_s", "Q5_K"), ("q6_k", "Q6_K")):
        path = quantise_to(folder, CandidatePlan(format=name), tmp_path / name)
        subject = open_subject(path)
        assert stored in kinds(subject)
        assert subject.inspection["walked"] is True
        assert subject.inspection["substitutions"] == []
        errors.append(float(np.sqrt(np.mean((logits(subject) - exact) ** 2))))
    assert errors[0] > errors[1] > errors[2] > 0


def test_rows_that_256_does_not_divide_take_an_older_format(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = tiny_model("llama", hidden_size=64, intermediate_size=256)
    path = quantise_to(folder, CandidatePlan(format="q4_k_s"), tmp_path / "q4_k_s")
    found = kinds(open_subject(path))
    assert "Q5_0" in found
    assert found & {"Q4_K", "Q5_K"}


def test_file_that_llamacpp_cannot_quantise_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but not one")
    with pytest.raises(CkeError, match=r"error\[CKE714\]: llama.cpp does not quantise this model"):
        quantise_to(path, CandidatePlan(format="q6_k"), tmp_path / "q6_k")
