"""Errors that `check_blocks` finds without a config: each circuit beside its exact text."""

from pathlib import Path

import pytest

from cke.dsl.elaborate import check_blocks
from cke.dsl.library import library_circuits
from cke.dsl.resolve import load_circuit

CASES = sorted(Path(__file__).with_name("elaborate_errors").glob("*.circuit"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_blocks_report_exactly_what_is_wrong(case: Path) -> None:
    found = check_blocks(load_circuit(case))
    assert "".join(f"{each}\n" for each in found) == case.with_suffix(".stderr").read_text()


@pytest.mark.parametrize("name", library_circuits())
def test_blocks_of_the_library_have_no_errors(name: str) -> None:
    assert check_blocks(load_circuit(name)) == []


def test_an_error_is_reported_once_and_what_follows_is_not_blamed(tmp_path: Path) -> None:
    text = (CASES[0].parent / "callee_unknown.circuit").read_text()
    more = text.replace("return y", "z = silu(y)\n  return z")
    path = tmp_path / "bad.circuit"
    path.write_text(more)
    assert [each.code for each in check_blocks(load_circuit(path))] == ["CKE211"]
