"""The table of exceptions: every row has an oracle, a reason, and a checkpoint that exists."""

import fnmatch
from pathlib import Path

import msgspec

from cke.oracles.exceptions import exceptions, explained
from cke.oracles.open import LIVE
from cke.oracles.points import graph_table
from cke.schemas.manifest import Manifest

BUILT_ON_DEMAND = ("albert", "bert", "cohere2", "dinov2", "granite_hybrid")
"""Families outside the library; the parity test holds that their rows are needed."""


def _names(repository: Path) -> set[str]:
    names: set[str] = set()
    for path in sorted((repository / "generated").glob("*/manifest.json")):
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        names |= {binding.checkpoint.name for binding in manifest.checkpoints}
    return names


def test_every_exception_names_a_checkpoint_of_the_library_and_a_reason(repository: Path) -> None:
    names = _names(repository)
    for item in exceptions():
        assert item.oracle in (*LIVE, "reference")
        if item.family not in BUILT_ON_DEMAND:
            assert fnmatch.filter(names, item.checkpoint), item
        assert item.why[0].islower()


def test_nothing_that_an_oracle_shows_is_excused_as_not_shown() -> None:
    points = {point.point for point in graph_table().layer.values()}
    for name in points:
        assert explained("llamacpp", "llama", "f32", name, "not_shown") is None


def test_an_exception_covers_its_oracle_and_kind_only() -> None:
    point = "edge/mlp/h/gelu_tanh"
    assert explained("llamacpp", "gemma3", "f32", point, "not_shown") is not None
    assert explained("llamacpp", "gemma3", "f32", point, "over") is None
    assert explained("pytorch", "gemma3", "f32", point, "not_shown") is None
