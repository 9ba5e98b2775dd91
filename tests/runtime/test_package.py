"""Packages are reached by folder; what is missing or lies is an error."""

import pytest

from cke.errors import CkeError, MissingInputError
from cke.runtime.package import load_package


def test_a_folder_without_a_manifest_is_an_error(tmp_path):
    with pytest.raises(MissingInputError) as caught:
        load_package(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: error[CKE611]: expected a generated package, "
        "got a folder without `manifest.json`\n"
        "  help: build it with `cke build CIRCUIT --model PATH`"
    )


def test_a_manifest_that_lies_is_an_error(tmp_path):
    (tmp_path / "manifest.json").write_text('{"schema": 3}')
    with pytest.raises(CkeError) as caught:
        load_package(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/manifest.json: error[CKE612]: the manifest cannot be read: "
        "Expected `str`, got `int` - at `$.schema`\n"
        "  help: remove the folder and build the package again"
    )
