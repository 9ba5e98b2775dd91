"""One folder per library circuit: what was written, and what every level makes of it.

`circuit` is the text of the circuit, `build.txt`, `graph.txt` and `call.txt` are its levels under
the reference config, `module.py` is its decode or encode module. A second test runs the code
(tests/equivalence). Rewrite with --update-golden and read the diff.
"""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from cke.codegen.build import lower_circuit
from cke.codegen.dump import dump
from cke.codegen.emit import emit
from cke.codegen.library import library_circuits, reference_source

HERE = Path(__file__).parent


@cache
def texts(circuit: str, repository: Path) -> dict[str, str]:
    levels = lower_circuit(circuit, reference_source(circuit), "f32")
    modules = emit(msgspec.json.encode(levels.calls))
    module = modules[f"{levels.calls.programs[-1].phase}.py"]
    return {
        "circuit": (repository / levels.build.file).read_text(),
        "build.txt": dump(levels.build),
        "graph.txt": dump(levels.graph),
        "call.txt": dump(levels.calls),
        "module.py": module,
    }


@pytest.mark.parametrize("circuit", library_circuits())
def test_every_level_of_a_library_circuit_is_as_the_golden_says(
    circuit: str, repository: Path, update_golden: bool
) -> None:
    folder = HERE / circuit
    found = texts(circuit, repository)
    if update_golden:
        folder.mkdir(exist_ok=True)
        for name, text in found.items():
            (folder / name).write_text(text)
    for name, text in found.items():
        assert (folder / name).read_text() == text, f"{circuit}/{name}"


def test_there_is_a_golden_for_every_library_circuit_and_no_other() -> None:
    folders = {item.name for item in HERE.iterdir() if item.is_dir() and item.name[0] != "_"}
    assert folders == set(library_circuits())
