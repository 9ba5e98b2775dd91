"""Each part of X-Ray broken in turn: the scoreboard turns red, else it proves nothing."""

from pathlib import Path

import pytest

from cke.errors import CkeError
from cke.validator.choose import light_cases
from cke.validator.entries import read_catalogue
from cke.validator.sabotage import read_sabotages, sabotage_named, sabotaged
from cke.validator.validate import validate

NAMES = sorted(read_sabotages())


def test_every_part_is_broken_and_shown_by_a_fault_and_a_control() -> None:
    assert NAMES == ["classifier", "comparator", "gate", "injector", "planner", "replay"]
    for sabotage in read_sabotages().values():
        cases = sabotaged(light_cases(read_catalogue()), sabotage)
        assert {case.id for case in cases} == set(sabotage.cases)
        assert {case.kind for case in cases} == {"fault", "control"}


def test_an_unknown_sabotage_is_refused() -> None:
    with pytest.raises(CkeError, match=r"error\[CKE792\]: expected a sabotage of `comparator`"):
        sabotage_named("everything")


@pytest.mark.contract("XRAY-32")
@pytest.mark.nightly
@pytest.mark.oracle_torch
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", NAMES)
def test_a_broken_part_turns_the_score_red(name: str, tmp_path: Path) -> None:
    document = validate(tmp_path, "light", sabotage=name)
    assert document.body.status == "fail"


@pytest.mark.contract("XRAY-33")
@pytest.mark.nightly
@pytest.mark.oracle_torch
@pytest.mark.multiprocess
def test_a_run_is_taken_up_where_it_was_stopped(tmp_path: Path) -> None:
    only = ("no-profile", "clean")
    said: list[str] = []
    first = validate(tmp_path, "light", only, say=said.append)
    again = validate(tmp_path, "light", only, say=said.append)
    assert first.body == again.body
    assert first.body.status == "pass"
    assert "2 of 2 cases are kept from an earlier run" in said
