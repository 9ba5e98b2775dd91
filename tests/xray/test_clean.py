"""Clean models: every family, both live oracles, both run dtypes; no finding and a scoped pass."""

import json
from pathlib import Path
from typing import Any

import pytest

import cke
from cke.api.diagnosis import xray
from cke.errors import CkeError
from cke.oracles.open import open_oracle
from cke.validator.decided import decided_request
from tests.models import FAMILIES, TinyModel
from tests.xray.matrix import CELLS, ENCODERS, MODEL_TYPES, REFUSED, SERVED

SPELLED = {"float32": "FP32", "bfloat16": "BF16"}
NAMED = {"pytorch": "PyTorch", "llamacpp": "llama.cpp"}
EVERY_TIME = (
    ("pytorch", "llama", "float32"),
    ("pytorch", "bert", "float32"),
    ("pytorch", "dinov2", "float32"),
    ("pytorch", "mixtral", "float32"),
    ("pytorch", "mixtral", "bfloat16"),
    ("llamacpp", "gemma2", "float32"),
    ("llamacpp", "llama", "bfloat16"),
)


def _asked(folder: Path, family: str, dtype: str) -> dict[str, Any]:
    """Return what a model is asked; in bfloat16 nothing whose choice is left to rounding."""
    if family in ENCODERS:
        return {}
    if dtype == "float32":
        return {"forced": ((5,), (9,))}
    asked = decided_request(folder, "decode")
    return {name: tuple(map(tuple, asked[name])) for name in ("tokens", "forced")}


def _cells() -> list[object]:
    cells = [(oracle, family, dtype) for oracle, family in CELLS for dtype in SPELLED]
    nightly = [pytest.mark.nightly]
    return [
        pytest.param(*cell, marks=[] if cell in EVERY_TIME else nightly, id="-".join(cell))
        for cell in cells
    ]


@pytest.mark.slow
@pytest.mark.oracle_torch
@pytest.mark.oracle_llamacpp
@pytest.mark.contract("XRAY-3")
@pytest.mark.parametrize(("oracle", "family", "dtype"), _cells())
def test_a_clean_model_passes_and_says_its_scope(
    oracle: str, family: str, dtype: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    folder = tiny_model(family, **SERVED[oracle][family])
    asked = _asked(folder, family, dtype)
    report = xray(folder, oracle=oracle, dtype=dtype, out=tmp_path, **asked)
    assert report.first_divergence is None
    assert (report.status, report.verdict) == ("complete", "pass_within_gate")
    scope = f" edges within gate — {SPELLED[dtype]} · {NAMED[oracle]} · fixture "
    assert scope in report.banner
    assert [stage.state for stage in report.stages] == ["passed"] * 6


def test_every_circuit_of_the_library_has_a_tiny_model() -> None:
    library = {path.stem for path in (Path(cke.__file__).parent / "circuits").glob("*.circuit")}
    assert library <= set(FAMILIES)


@pytest.mark.oracle_torch
@pytest.mark.oracle_llamacpp
@pytest.mark.parametrize(("oracle", "family"), REFUSED)
def test_an_oracle_refuses_a_family_that_it_has_no_table_for(
    oracle: str, family: str, tmp_path: Path
) -> None:
    model_type = MODEL_TYPES.get(family, family)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(CkeError) as caught:
        open_oracle(oracle, tmp_path)
    code = {"pytorch": "CKE710", "llamacpp": "CKE713"}[oracle]
    assert f"error[{code}]: no " in str(caught.value)
