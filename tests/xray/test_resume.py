"""A run since an earlier report looks at its block first, and takes nothing of it for granted."""

from pathlib import Path

import msgspec
import pytest

from cke.api.report_files import moved
from tests.xray.interpreted import Interpreted, Oracle, Place, diagnosed

EARLY: Place = (1, "mlp.up_proj", 0)
LATE: Place = (3, "attention.rope", 0)
EARLIER: Place = (0, "attention.o_proj", 0)
pytestmark = pytest.mark.slow


@pytest.mark.contract("XRAY-17")
@pytest.mark.contract("XRAY-58")
def test_a_fault_that_stayed_is_named_in_one_round(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    first = diagnosed(sides, (EARLY, LATE), tmp_path / "rounds")
    again = diagnosed(sides, (EARLY, LATE), tmp_path / "rounds", first)
    assert len(first.rounds) == 2
    (only,) = again.rounds
    assert only.purpose == "sparse, and the edges of `layer.1`, where the earlier report ended"
    assert only.edges is not None
    inner = {name for name in only.edges if name.startswith("layer.")}
    assert inner
    assert all(name.startswith("layer.1.") for name in inner)
    assert again.first_divergence == first.first_divergence
    assert moved(again, first).startswith("stayed at layer.1.")


@pytest.mark.contract("XRAY-17")
def test_what_comes_before_the_earlier_edge_is_shown_again(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    first = diagnosed(sides, (EARLY, LATE), tmp_path / "rounds")
    worse = diagnosed(sides, (EARLIER, LATE), tmp_path / "rounds", first)
    assert worse.first_divergence is not None
    assert (worse.first_divergence.layer, worse.first_divergence.op) == EARLIER[:2]
    assert moved(worse, first).startswith("moved earlier: from layer.1.")
    fixed = diagnosed(sides, (LATE,), tmp_path / "rounds", first)
    assert fixed.first_divergence is not None
    assert (fixed.first_divergence.layer, fixed.first_divergence.op) == LATE[:2]
    assert moved(fixed, first).startswith("moved later: from layer.1.")
    assert "layer.0.layer_output" in {point.checkpoint_id for point in fixed.points}


def test_an_edge_that_the_circuit_no_longer_has_starts_from_the_sparse_set(
    sides: tuple[Interpreted, Oracle], tmp_path: Path
) -> None:
    first = diagnosed(sides, (EARLY,), tmp_path / "rounds")
    assert first.first_divergence is not None
    gone = msgspec.structs.replace(first.first_divergence, checkpoint_id="layer.1.gone")
    earlier = msgspec.structs.replace(first, first_divergence=gone)
    report = diagnosed(sides, (EARLY,), tmp_path / "rounds", earlier)
    assert report.rounds[0].purpose == "sparse: the earlier edge is no longer in the circuit"
    assert report.first_divergence == first.first_divergence
