"""The catalogue: every entry can be injected as it stands, and says what it must give."""

from pathlib import Path

import pytest

from cke.errors import CkeError
from cke.validator.entries import Case, Entry, read_catalogue
from cke.validator.inject import PACKAGE, edited
from cke.validator.models import TINY_MODELS
from cke.validator.requests import REQUESTS
from cke.validator.sabotage import read_sabotages
from cke.xray.classes import CLASSES, OWNERS

CATALOGUE = read_catalogue()
OPEN = {
    "REDUCTION_CONTRACT_MISMATCH",
    "REFERENCE_DEFECT",
    "RANKING_DIVERGENCE",
}
"""Classes that no entry stands for yet."""

ENTRY = """
[[fault]]
id = "one"
about = "a fault"
stands_for = "bug 1"
place = "circuit text"
families = ["llama"]
mutations = [{ kind = "text", file = "circuits/llama.circuit", old = "a", new = "b" }]
expected = [{ class = "POSITION_CONTRACT_MISMATCH", owner = "%s" }]
"""


def _cases(entry: Entry) -> list[Case]:
    size = next(iter(entry.sizes), None)
    return [Case(entry, family, "decode", "f32", "pytorch", size) for family in entry.families]


@pytest.mark.contract("XRAY-29")
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_every_text_of_a_fault_is_where_the_entry_says(entry: Entry) -> None:
    files: dict[str, str] = {}
    for item in (*_cases(entry)[0].mutations,):
        if item.kind == "text":
            text = files.get(item.file) or (PACKAGE / item.file).read_text("utf-8")
            files[item.file] = edited(text, item)


def test_every_text_of_a_sabotage_is_where_it_says() -> None:
    for sabotage in read_sabotages().values():
        for item in sabotage.mutations:
            edited((PACKAGE / item.file).read_text("utf-8"), item)


@pytest.mark.contract("XRAY-30")
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_every_configuration_is_known_and_its_finding_declared(entry: Entry) -> None:
    assert {family.partition(".")[0] for family in entry.families} <= set(TINY_MODELS)
    assert set(entry.requests) <= set(REQUESTS)
    for case in _cases(entry):
        fault = case.kind == "fault"
        assert (case.expected.failure_class is not None) == fault
        assert (case.expected.fix_owner is not None) == fault


@pytest.mark.contract("XRAY-31")
def test_every_class_and_owner_has_a_fault() -> None:
    rows = [row for entry in CATALOGUE for row in entry.expected]
    assert set(CLASSES) - {row.failure_class for row in rows} == OPEN
    assert {row.owner for row in rows} == set(OWNERS)


def test_sizes_hold_a_control_below_the_budget() -> None:
    sized = [entry for entry in CATALOGUE if entry.sizes]
    assert sized
    for entry in sized:
        assert tuple(entry.sizes) == ("gross", "moderate", "above", "below")
        assert Case(entry, "llama", "decode", "f32", "pytorch", "below").kind == "control"


def _refused(folder: Path, text: str) -> str:
    (folder / "x.toml").write_text(text)
    with pytest.raises(CkeError) as caught:
        read_catalogue(folder)
    return str(caught.value)


def test_an_entry_with_a_class_of_another_owner_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, ENTRY % "kernel").splitlines()[0] == (
        "catalogue/x.toml: error[CKE790]: `one` expects POSITION_CONTRACT_MISMATCH of kernel, "
        "which is no row"
    )


def test_an_id_that_is_defined_twice_is_refused(tmp_path: Path) -> None:
    assert "`one` is defined twice" in _refused(tmp_path, (ENTRY % "circuit") * 2)


def test_a_change_that_finds_nothing_is_refused() -> None:
    item = CATALOGUE[0].mutations[0]
    with pytest.raises(ValueError, match=r"is not in circuits/blocks/decoder\.circuit"):
        edited("another text", item)
