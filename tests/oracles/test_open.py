"""Opening an oracle by name."""

from pathlib import Path

import pytest

from cke.errors import CkeError, MissingInputError
from cke.oracles.open import open_oracle


def test_an_unknown_oracle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CkeError) as caught:
        open_oracle("onnx", tmp_path)
    assert str(caught.value) == (
        "error[CKE720]: expected an oracle of `pytorch`, `llamacpp`, `reference` or a trace "
        "folder, got `onnx`"
    )


def test_a_missing_model_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError) as caught:
        open_oracle("pytorch", tmp_path / "none")
    assert caught.value.exit_code == 3
    assert "CKE721" in str(caught.value)
