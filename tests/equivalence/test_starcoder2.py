"""StarCoder2 past its window, in every run of the suite; its variants are among the families."""

import pytest

import cke
from tests.equivalence.test_families import BOUND, difference, oracle_logits, prompt


@pytest.mark.oracle_torch
def test_starcoder2_matches_transformers_past_its_window(tiny_model):
    folder = tiny_model("starcoder2")
    tokens = prompt()
    expected = oracle_logits(folder, tokens)
    got = cke.load(folder).logits(tokens)
    assert got.shape == expected.shape
    assert difference(got, expected) <= BOUND
