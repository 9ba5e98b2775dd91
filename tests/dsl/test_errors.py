"""Every diagnostic of the language by a failing example and its exact text.

`CODE.circuit` is checked, under the config `CODE.json` when there is one; `CODE.json` alone is
the config of a model whose circuit is looked for. Regenerate with `--update-golden`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cke.dsl.check import check_circuit
from cke.dsl.config import bind_config
from cke.dsl.library import read_file
from cke.dsl.match import find_family
from cke.dsl.new import new_circuit
from cke.dsl.parse import SIZE_LIMIT, SyntaxErrors, parse
from cke.dsl.resolve import load_circuit
from cke.errors import CkeError, MissingInputError
from cke.errors.catalogue import catalogue
from cke.schemas.model_source import TensorInfo

EXAMPLES = Path(__file__).with_name("errors")
CODES = sorted({path.stem for path in EXAMPLES.glob("CKE*.*")})


class ConfigOnly:
    """A model of which only the config is at hand."""

    format = "hf"
    name = "model"
    tensors: dict[str, TensorInfo] | None = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def values(self, key: str) -> list[float]:
        raise KeyError(key)


def error_text(code: str) -> str:
    """Return what the example prints."""
    circuit, config = EXAMPLES / f"{code}.circuit", EXAMPLES / f"{code}.json"
    source = ConfigOnly(json.loads(config.read_text("utf-8"))) if config.exists() else None
    with pytest.raises(CkeError) as caught:
        run_example(circuit if circuit.exists() else None, source)
    return f"{caught.value}\n"


def run_example(circuit: Path | None, source: ConfigOnly | None) -> None:
    if circuit is None:
        assert source is not None
        find_family(source)
        return
    loaded = load_circuit(circuit)
    check_circuit(loaded)
    bind_config(loaded, source)


@pytest.mark.parametrize("code", CODES)
def test_example_prints_its_text(code: str, pytestconfig: pytest.Config) -> None:
    expected = EXAMPLES / f"{code}.stderr"
    text = error_text(code)
    if pytestconfig.getoption("--update-golden", default=False):
        expected.write_text(text, "utf-8")
    assert f"error[{code}]" in text
    assert text == expected.read_text("utf-8")


def test_every_code_of_the_language_has_an_example() -> None:
    """CKE21x and 25x are elaboration's; what needs more than a file is tested below."""
    mine = {
        code
        for code in catalogue()
        if "CKE100" < code < "CKE400" and not code.startswith(("CKE21", "CKE25"))
    }
    elsewhere = {"CKE115", "CKE201", "CKE220", "CKE242", "CKE243", "CKE311", "CKE313"}
    assert mine - elsewhere == set(CODES)


def test_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(SyntaxErrors, match=r"error\[CKE115\]: a circuit file is at most 1048576"):
        parse(b"#" * (SIZE_LIMIT + 1), "x.circuit")


def test_file_that_cannot_be_read_is_missing_input() -> None:
    with pytest.raises(MissingInputError, match=r"x\.circuit: error\[CKE201\]: cannot read"):
        read_file(EXAMPLES / "absent.circuit", "x.circuit")


def test_new_circuit_needs_a_config_with_values() -> None:
    with pytest.raises(CkeError, match=r"^model: error\[CKE313\]: expected a model's config"):
        new_circuit(ConfigOnly({}))


def test_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(CkeError) as caught:
        find_family(ConfigOnly({"architectures": ["UnheardOfForCausalLM"]}))
    first, known, hint = str(caught.value).splitlines()
    assert first == (
        "config.json: `$.architectures`: error[CKE311]: no circuit of the library is for this "
        "model: got `UnheardOfForCausalLM`"
    )
    assert "LlamaForCausalLM" in known
    assert hint.endswith("and give it with `--circuit`")
