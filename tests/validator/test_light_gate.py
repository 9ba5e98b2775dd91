"""The light gate: a few faults of every owner, injected and diagnosed blind, in every change."""

from pathlib import Path

import pytest

from cke.validator.scoreboard import is_right
from cke.validator.validate import validate


@pytest.mark.contract("XRAY-30")
@pytest.mark.contract("XRAY-33")
@pytest.mark.contract("XRAY-39")
@pytest.mark.slow
@pytest.mark.oracle_torch
@pytest.mark.multiprocess
def test_every_fault_of_the_light_gate_is_named_and_every_control_is_quiet(tmp_path: Path) -> None:
    body = validate(tmp_path, "light", jobs=2).body
    assert [item.id for item in body.outcomes if not is_right(item)] == []
    assert (body.status, body.reasons) == ("pass", ())
