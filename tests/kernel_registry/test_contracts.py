"""A contract file is read strictly; a wrong one is one error with file and path."""

from importlib import resources

import pytest

from cke.errors import CkeError
from cke.kernel_registry.contract_files import read_contract, registry


def _text() -> str:
    folder = resources.files("cke.kernel_registry") / "contracts"
    return (folder / "rms_norm.toml").read_text("utf-8")


def _refusal(text: str) -> str:
    with pytest.raises(CkeError) as caught:
        read_contract("contracts/rms_norm.toml", text)
    assert caught.value.diagnostics[0].code == "CKE501"
    return str(caught.value)


def test_unknown_key_names_file_and_path() -> None:
    text = _text().replace("[validation]", "[validation]\nspeed = 1")
    assert _refusal(text) == (
        "contracts/rms_norm.toml: `$.validation`: error[CKE501]: object contains unknown field "
        "`speed`\n  help: the fields of a contract are those of `KernelContract`"
    )


@pytest.mark.parametrize("word", ["auto", "default", "fast", "fp16"])
def test_ambiguous_ids_are_refused(word: str) -> None:
    text = _text().replace('id = "rms_norm"', f'id = "rms_norm_{word}"', 1)
    assert f"`rms_norm_{word}` says `{word}`, which names no contract" in _refusal(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('operator = "rms_norm"', 'operator = "norm"', "no operator is called `norm`"),
        ('exposes = ["output"]', 'exposes = ["x"]', "expected results among output, got `x`"),
        ("[promise.reduction]", "[promise.speed]", "expected a section among"),
        ("deterministic = true", "parallel = true", "got `parallel`"),
        ("priority = 100", 'priority = "high"', "expected `int`, got `str`"),
        ("priority = 100", "priority = ", "not TOML"),
    ],
)
def test_wrong_field_is_refused(old: str, new: str, message: str) -> None:
    text = _text()
    assert old in text
    assert message in _refusal(text.replace(old, new, 1))


def test_every_shipped_contract_names_a_kernel_of_its_stem() -> None:
    kernels = resources.files("cke.kernel_registry") / "kernels"
    stems = {f.name.removesuffix(".py") for f in kernels.iterdir() if f.name.endswith(".py")}
    ids = [contract.id for contract in registry()]
    assert sorted(set(ids)) == ids
    assert set(ids) == stems - {"__init__"}
