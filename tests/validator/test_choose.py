"""The choice of cases is pairwise, committed, and the same each time."""

import itertools

import pytest

from cke.errors import CkeError
from cke.validator.choose import light_cases, nightly_cases
from cke.validator.entries import read_catalogue
from cke.validator.validate import chosen_cases
from cke.xray.classes import OWNERS

CATALOGUE = read_catalogue()


def test_every_pair_of_an_entry_meets_in_the_nightly() -> None:
    entry = next(item for item in CATALOGUE if item.id == "clean")
    cases = [case for case in nightly_cases(CATALOGUE) if case.entry.id == "clean"]
    for family, request in itertools.product(entry.families, entry.requests):
        assert any((case.family, case.request) == (family, request) for case in cases)
    for family, dtype in itertools.product(entry.families, entry.dtypes):
        assert any((case.family, case.dtype) == (family, dtype) for case in cases)
    assert len(cases) < len(entry.families) * len(entry.requests) * len(entry.dtypes)


def test_the_choice_is_the_same_each_time_and_names_are_unique() -> None:
    first = [case.id for case in nightly_cases(CATALOGUE)]
    assert first == [case.id for case in nightly_cases(CATALOGUE)]
    assert len(set(first)) == len(first)
    assert len(first) >= 120


def test_the_light_gate_has_faults_and_controls_of_every_stage() -> None:
    cases = light_cases(CATALOGUE)
    assert {case.kind for case in cases} == {"fault", "control", "equivalent"}
    owners = {case.expected.fix_owner for case in cases} - {None}
    assert owners == set(OWNERS)


def test_a_pattern_that_matches_no_case_is_refused() -> None:
    with pytest.raises(
        CkeError, match=r"error\[CKE791\]: no case of the light choice matches nothing-\*"
    ):
        chosen_cases("light", ("nothing-*",))
