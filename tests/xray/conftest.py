"""Fixtures for tests of X-Ray."""

import pytest

import cke
from tests.models import TinyModel
from tests.xray.interpreted import Interpreted, Oracle


@pytest.fixture(scope="session")
def sides(tiny_model: TinyModel) -> tuple[Interpreted, Oracle]:
    model = cke.load(tiny_model("llama", num_hidden_layers=4))
    oracle = Oracle(model)
    oracle.dtype = "f64"
    return Interpreted(model), oracle
