"""The catalogue: every entry can be injected as it stands, and says what it must give."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from cke.errors import CkeError
from cke.validator.entries import Case, Entry, Expectation, read_catalogue
from cke.validator.inject import PACKAGE, edited, inject
from cke.validator.models import TINY_MODELS
from cke.validator.requests import REQUESTS
from cke.validator.sabotage import read_sabotages
from cke.xray.classes import CLASSES, OWNERS

CATALOGUE = read_catalogue()
FAULTS, FAMILIES = 3, 2
"""Each class and each owner is hit by so many entries, in so many families, at least."""

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
    size = entry.variants[0]
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
        assert case.expected.failure_class == "RANKING_DIVERGENCE" or (
            (case.expected.fix_owner is not None) == fault
        )


def _hits(name: Callable[[Expectation], str | None]) -> dict[str | None, set[tuple[str, str]]]:
    """Return the (entry, family) pairs that expect a class or an owner."""
    found: dict[str | None, set[tuple[str, str]]] = defaultdict(set)
    for entry in CATALOGUE:
        if entry.kind == "fault":
            for row in (*entry.expected, *entry.then):
                found[name(row)] |= {
                    (entry.id, family) for family in row.families or entry.families
                }
    return found


@pytest.mark.contract("XRAY-31")
def test_every_class_and_owner_is_hit_by_several_faults_in_several_families() -> None:
    for names, hits in (
        (CLASSES, _hits(lambda row: row.failure_class)),
        (OWNERS, _hits(lambda row: row.owner)),
    ):
        for name in names:
            assert len({entry for entry, _ in hits[name]}) >= FAULTS, name
            assert len({family for _, family in hits[name]}) >= FAMILIES, name


@pytest.mark.contract("XRAY-31")
def test_a_first_token_alone_leaves_its_owner_open() -> None:
    rows = [row for entry in CATALOGUE for row in (*entry.expected, *entry.then)]
    assert {row.failure_class for row in rows if row.owner is None} == {"RANKING_DIVERGENCE"}


def test_a_double_fault_runs_again_with_its_earlier_one_fixed() -> None:
    entry = next(item for item in CATALOGUE if item.id == "kernel-and-circuit")
    both, fixed = (Case(entry, "llama", "decode", "f32", "pytorch", v) for v in entry.variants)
    assert both.mutations == entry.mutations
    assert fixed.mutations == entry.mutations[:1]
    assert (both.expected.fix_owner, fixed.expected.fix_owner) == ("circuit", "kernel")
    assert fixed.id == "kernel-and-circuit.fixed.llama.decode.f32.pytorch"


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


@pytest.mark.contract("XRAY-29")
def test_the_library_holds_no_other_copy_of_a_circuit_under_test(tmp_path: Path) -> None:
    entry = next(entry for entry in CATALOGUE if entry.id == "rope-base")
    made = inject(_cases(entry)[0], tmp_path / "model", tmp_path / "scratch", lambda m, r: m)
    library = made.source / "cke" / "circuits"
    assert Path(made.arguments["circuit"]) == library / "llama.circuit"
    for mutation in entry.mutations:
        text = (made.source / "cke" / mutation.file).read_text("utf-8")
        assert mutation.new in text
        assert mutation.old not in text.replace(mutation.new, "")
    assert not (made.source / "cke" / "generated").exists()
    assert not (made.source / "cke" / "validator").exists()
