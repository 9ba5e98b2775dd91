"""Probe inputs follow from a circuit's graph, and reach every cell that can be reached."""

from pathlib import Path

import msgspec
import pytest

from cke.runtime.schedule import plan_segments
from cke.schemas.manifest import Manifest
from cke.schemas.probe import ProbeCell
from cke.xray.probe import (
    BATCHES,
    EXECUTIONS,
    KEYS,
    Probe,
    Shape,
    circuit_shape,
    covered_cells,
    derive_probes,
    matrix,
    observed,
    positions_of,
)

CONTEXT = 512
UNREACHABLE = {
    "one key is not beyond a window",
    "tokens that are appended at once follow cached ones",
    "rows of one token are not of unequal length",
}


def _shape(circuit: str, repository: Path) -> Shape:
    raw = (repository / "generated" / circuit / "manifest.json").read_bytes()
    return circuit_shape(msgspec.json.decode(raw, type=Manifest).graph, CONTEXT)


def _cells(shape: Shape, probes: list[Probe], max_tokens: int) -> list[ProbeCell]:
    hits = {
        probe.name: (probe, observed(plan_segments(probe.request), shape.windows))
        for probe in probes
    }
    return list(covered_cells(shape, "f32", hits, max_tokens))


@pytest.mark.contract("XRAY-21")
@pytest.mark.parametrize("circuit", ["llama", "gemma3", "mistral", "gpt2", "qwen3_moe"])
def test_every_cell_that_can_be_reached_is_covered(circuit: str, repository: Path) -> None:
    shape = _shape(circuit, repository)
    cells = _cells(shape, derive_probes(shape, (1, 2), 128), 128)
    assert len(cells) == len(set(cells)) == len(list(matrix(shape)))
    assert {cell.execution for cell in cells if cell.run} == set(EXECUTIONS)
    assert {cell.keys for cell in cells if cell.run} == set(KEYS)
    assert {cell.batch for cell in cells if cell.run} == set(BATCHES)
    assert {cell.reason for cell in cells if cell.run is None} <= UNREACHABLE
    assert all((cell.run is None) != (cell.reason is None) for cell in cells)


@pytest.mark.contract("XRAY-21")
def test_positions_go_beyond_every_boundary_of_rope(repository: Path) -> None:
    shape = _shape("llama", repository)
    assert shape.boundaries == (CONTEXT,)
    assert positions_of(shape) == {"zero": 0, "small": 5, "beyond 512": 513}
    raw = (repository / "generated" / "llama" / "manifest.json").read_bytes()
    wider = circuit_shape(msgspec.json.decode(raw, type=Manifest).graph, 4096)
    assert wider.boundaries == (512, 4096)
    firsts = {probe.request.first_position for probe in derive_probes(wider, (), 128)}
    assert firsts == {0, 5, 513, 4097}


@pytest.mark.contract("XRAY-21")
def test_rows_are_shorter_and_longer_than_every_window(repository: Path) -> None:
    shape = _shape("gemma3", repository)
    assert shape.windows == (64,)
    longest = max(len(p.request.tokens[0]) for p in derive_probes(shape, (), 128))
    assert longest > 64
    cells = _cells(shape, derive_probes(shape, (), 40), 40)
    missed = {cell.reason for cell in cells if cell.length == "beyond 64" and cell.keys != "one"}
    assert missed == {"a row of more than 64 tokens exceeds the limit of 40"}


@pytest.mark.contract("XRAY-21")
def test_the_first_two_layers_of_each_kind_are_probed(repository: Path) -> None:
    shape = _shape("gemma3", repository)
    assert shape.layers == {"layer_sliding": (0, 1), "layer_full": (5,)}
    assert derive_probes(shape, (), 128)[0].request.layers == {0, 1, 5}


def test_tokens_repeat_and_hold_the_special_ones(repository: Path) -> None:
    shape = _shape("llama", repository)
    for probe in derive_probes(shape, (1, 2), 128):
        row = probe.request.tokens[0]
        assert row[0] == 1
        assert len(row) == 1 or (row[3] == row[2] and row[4] == 2)
        assert all(0 <= token < shape.vocabulary for token in row)


def test_positions_of_a_learned_table_are_not_left(repository: Path) -> None:
    shape = _shape("gpt2", repository)
    assert shape.learned_positions == CONTEXT
    assert shape.boundaries == ()
    short = msgspec.structs.replace(shape, learned_positions=8, boundaries=(8,))
    assert derive_probes(short, (), 128) == []
    cells = _cells(short, [], 128)
    beyond = {cell.reason for cell in cells if cell.position == "beyond 8" and cell.keys != "one"}
    assert beyond == {"positions are looked up in a table of 8 rows"}
