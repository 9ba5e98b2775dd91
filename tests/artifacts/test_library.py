"""Localisation is a function of the library; a flag of the command line captures evidence."""

import inspect
from typing import get_args

import pytest

from cke.artifacts import pass4
from cke.artifacts.pass0 import REASONS
from cke.artifacts.pass4_reasons import REASONS as STAGE_REASONS
from cke.artifacts.stages import STAGE_IDS
from cke.cli import run_artifacts
from cke.schemas import differential
from cke.schemas.differential import StageLocalization
from cke.schemas.run_report import ForcedPrefix
from tests.artifacts.contract_table import table
from tests.artifacts.generations import parents, recapture
from tools.artifact_pages import differential_page, verify_contract_page
from tools.generate_reference import NOTE


@pytest.mark.contract("LIS-135", "LIS-116")
def test_capture_flag_does_not_localise():
    source = inspect.getsource(run_artifacts)
    assert "pass4" not in source
    assert "localize" not in source
    found = pass4.localize_stages(parents(), recapture())
    assert isinstance(found, StageLocalization)


@pytest.mark.contract("LIS-154")
def test_pages_are_made_from_the_tables(repository):
    page = differential_page()
    codes = [*REASONS, *STAGE_REASONS, *STAGE_IDS, *get_args(differential.LayerStatus)]
    assert [code for code in codes if f"`{code}`" not in page] == []
    binding = verify_contract_page()
    assert all(f"| `{name}` |" in binding for name in ForcedPrefix.__struct_fields__)
    assert (repository / "docs" / "lis_verify_contract.md").read_text() == NOTE + binding


@pytest.mark.contract("LIS-154")
def test_no_line_is_without_a_test():
    assert "`none`" not in table()
