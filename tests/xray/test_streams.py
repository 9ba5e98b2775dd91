"""Comparison in tiles: bounded memory, every byte hashed, the same numbers."""

import resource
from pathlib import Path

import numpy as np
import pytest

from cke.errors import RejectedError
from cke.runtime.schedule import CaptureRequest
from cke.runtime.trace_writer import TENSORS
from cke.xray import diff, streams
from cke.xray.diff import diff_traces
from cke.xray.metrics import compare
from cke.xray.tiles import flat_start, tile_shape, tiles
from tests.xray.synthetic import write_sparse, write_trace

REQUEST = CaptureRequest(tokens=((1, 2, 3),))
MEGABYTE = 1 << 20


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> streams.Meter:
    found = streams.METER
    monkeypatch.setattr(found, "total", 0)
    monkeypatch.setattr(found, "largest", 0)
    return found


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (1, 7, 1, 5), (3, 0, 2)])
@pytest.mark.parametrize("limit", [1, 4, 7, 1000])
def test_tiles_cover_an_array_once_and_in_order(shape: tuple[int, ...], limit: int) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape)
    seen: list[int] = []
    for tile in tiles(shape, limit):
        part = array[tile]
        assert part.shape == tile_shape(tile)
        assert part.size <= limit
        assert flat_start(tile, shape) == part.reshape(-1)[0]
        seen += part.reshape(-1).tolist()
    assert seen == array.reshape(-1).tolist()


def test_axes_that_stay_whole_are_not_cut() -> None:
    assert {tile_shape(tile)[1] for tile in tiles((4, 9), 2, whole=1)} == {9}


@pytest.mark.parametrize("tile", [3, 10, 1 << 18])
def test_a_comparison_in_tiles_gives_the_numbers_of_the_whole(
    tile: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    left = generator.standard_normal((1, 3, 8)).astype(np.float32)
    right = left + 1e-6 * generator.standard_normal(left.shape).astype(np.float32)
    whole = compare(left, right, ("B", "T", "D"))
    monkeypatch.setattr(diff, "TILE", tile)
    subject = write_trace(tmp_path / "a", REQUEST, [("layer.0.x", ("B", "T", "D"), left)])
    turned = np.ascontiguousarray(right.transpose(2, 1, 0))
    oracle = write_trace(tmp_path / "b", REQUEST, [("layer.0.x", ("D", "T", "B"), turned)])
    found = diff_traces(subject, oracle).rows[0].metrics
    assert found is not None
    assert found.worst == whole.worst
    assert found.exact_elements == whole.exact_elements
    assert found.max_ulp == whole.max_ulp
    assert found.rmse == pytest.approx(whole.rmse, rel=1e-12)
    assert found.cosine == pytest.approx(whole.cosine, rel=1e-12)


def test_a_byte_that_the_comparison_meets_is_checked_against_its_digest(tmp_path: Path) -> None:
    value = [("layer.0.x", ("B", "T", "D"), np.ones((1, 3, 8), np.float32))]
    subject = write_trace(tmp_path / "a", REQUEST, value)
    oracle = write_trace(tmp_path / "b", REQUEST, value)
    with (tmp_path / "b" / TENSORS).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(RejectedError, match=r"CKE709\]: expected the digest"):
        diff_traces(subject, oracle)


def test_memory_is_bounded_by_a_tile_whatever_a_tensor_holds(
    tmp_path: Path, meter: streams.Meter
) -> None:
    shape = (1, 64, 1 << 14)
    subject = write_sparse(tmp_path / "a", 12, shape, {})
    oracle = write_sparse(tmp_path / "b", 12, shape, {7: 0.5})
    report = diff_traces(subject, oracle)
    assert meter.total == 2 * 12 * 4 * int(np.prod(shape))
    assert meter.largest <= 4 * streams.TILE
    assert [row.stop for row in report.rows if row.status != "exact"] == [7]


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_checkpoints_of_twenty_gigabytes_need_no_more_than_256_megabytes(
    tmp_path: Path, meter: streams.Meter
) -> None:
    shape = (1, 128, 3906)
    subject = write_sparse(tmp_path / "a", 10_000, shape, {})
    oracle = write_sparse(tmp_path / "b", 10_000, shape, {9_999: 0.5})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = diff_traces(subject, oracle)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert meter.total > 2 * 19.9e9
    assert meter.largest <= 4 * streams.TILE
    assert grown <= 256 * MEGABYTE
    assert [row.stop for row in report.rows if row.status != "exact"] == [9_999]
