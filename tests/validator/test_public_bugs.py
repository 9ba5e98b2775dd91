"""Public bugs: each stands in the catalogue or says why not, and X-Ray names it unaided."""

from collections.abc import Iterator

import pytest

from cke.validator.bugs import entries_by_row, read_bugs, row_cases
from cke.validator.run import Bench, package_sha256, run_case
from cke.validator.workers import Worker

BUGS = {bug.row: bug for bug in read_bugs()}
CASES = row_cases()
SMALL = (24, 37, 42, 55, 56)
"""Rows of the normal run, of four owners; the nightly runs them all."""


def test_every_row_has_a_fault_or_says_what_is_missing() -> None:
    assert list(BUGS) == list(range(1, 67))
    assert {row for row, bug in BUGS.items() if bug.missing is None} == set(entries_by_row())
    assert len(CASES) >= 25


def test_an_owner_that_differs_from_the_threads_has_a_reason() -> None:
    owners = {row: case.expected.fix_owner for row, case in CASES.items()}
    assert {row for row, owner in owners.items() if owner != BUGS[row].owner} == {
        row for row, bug in BUGS.items() if bug.differs is not None
    }
    assert set(owners.values()) == {bug.owner for bug in BUGS.values()}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Worker]]:
    folder = tmp_path_factory.mktemp("public-bugs")
    with Worker(folder / "worker", folder / "cache") as worker:
        yield Bench(folder, package_sha256()), worker


def _marked(row: int) -> object:
    marks = [] if row in SMALL else [pytest.mark.nightly]
    if "llamacpp" in CASES[row].oracle:
        marks.append(pytest.mark.oracle_llamacpp)
    return pytest.param(row, marks=marks, id=f"{row}-{CASES[row].entry.id}")


@pytest.mark.contract("XRAY-31")
@pytest.mark.oracle_torch
@pytest.mark.slow
@pytest.mark.parametrize("row", [_marked(row) for row in CASES])
def test_a_public_bug_is_named(row: int, bench: tuple[Bench, Worker]) -> None:
    outcome = run_case(*bench, CASES[row]).outcome
    assert outcome.failed is None
    assert outcome.found is not None
    found = outcome.found.checkpoint_id, outcome.found.failure_class, outcome.found.fix_owner
    expected = outcome.expected
    assert found == (expected.checkpoint_id, expected.failure_class, expected.fix_owner)
    assert outcome.confirmed or expected.fix_owner != "circuit"
