import importlib.util
from pathlib import Path

import pytest

from cke.runtime.traceback import CircuitLines

SOURCE = """\
def kernel(x):
    raise ValueError("expected two axes")


def layer(x):
    y = kernel(
        x,
    )  # circuits/toy.circuit:7
    return y
"""


def run(tmp_path: Path, tables: dict[str, dict[int, str]]) -> None:
    path = tmp_path / "decode.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("generated_decode", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with CircuitLines(tables):
        module.layer(1)


def test_an_exception_from_generated_code_names_the_circuit_line(tmp_path: Path) -> None:
    tables = {str(tmp_path / "decode.py"): dict.fromkeys((6, 7, 8), "circuits/toy.circuit:7")}
    with pytest.raises(ValueError, match="two axes") as raised:
        run(tmp_path, tables)
    assert raised.value.__notes__ == [
        "circuits/toy.circuit:7: raised by `layer`, generated from this line"
    ]


def test_an_exception_from_elsewhere_gains_no_note(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two axes") as raised:
        run(tmp_path, {})
    assert not hasattr(raised.value, "__notes__")
