"""Model folders written as GGUF."""

import json
from pathlib import Path

import pytest

from cke.errors import CkeError
from cke.oracles.gguf_writer import write_gguf


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bloom"}))
    with pytest.raises(CkeError) as caught:
        write_gguf(tmp_path, tmp_path / "m.gguf")
    assert "`$.model_type`: error[CKE713]: no GGUF mapping for `bloom`" in str(caught.value)
    assert not (tmp_path / "m.gguf").exists()
