"""Summaries of captures: the program of a device and the fold of the host agree."""

import jax
import ml_dtypes
import numpy as np
import pytest

from cke.runtime import host_summaries as host
from cke.runtime.records import summarise
from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.runtime.summaries import places, summary_of, summary_program
from cke.runtime.validity import canonical_shape, valid_mask

SHAPES = {
    "state": (("B", "T", "D"), (2, 16, 24)),
    "ids": (("B", "T", "A"), (2, 16, 2)),
    "chosen": (("B", "T", "A"), (2, 16, 2)),
    "scores": (("B", "H", "T", "S"), (2, 3, 16, 128)),
    "keys": (("B", "S", "K", "E"), (2, 128, 2, 8)),
    "half": (("B", "T", "D"), (2, 16, 24)),
}
AXES = tuple((key, axes) for key, (axes, _) in SHAPES.items())
REQUEST = CaptureRequest(tokens=((1, 2, 3, 4, 5, 6, 7), (1, 2, 3)), segments=(4, 7))


def _groups() -> list[dict[str, jax.Array]]:
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(3):
        group = {key: rng.standard_normal(shape) for key, (_, shape) in SHAPES.items()}
        group["state"][0, 1, 3], group["state"][0, 2, 4], group["state"][1, 0, 0] = (
            np.nan,
            np.inf,
            -np.inf,
        )
        dtypes = {"ids": np.int32, "half": ml_dtypes.bfloat16, "chosen": ml_dtypes.bfloat16}
        groups.append(
            {
                key: jax.device_put(array.astype(dtypes.get(key, np.float32)))
                for key, array in group.items()
            }
        )
    return groups


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("small", [host.SMALL, 0])
def test_the_device_the_host_and_the_definition_agree(
    index: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SMALL", small)
    monkeypatch.setattr(host, "BLOCK", 100)
    segment, groups = plan_segments(REQUEST)[index], _groups()
    where = jax.device_put(places(segment, 16))
    device = np.asarray(summary_program(groups, where, axes=AXES, padded=True)).tolist()
    folded = host.host_summaries(groups, AXES, segment)
    for layer, group in enumerate(groups):
        for edge, (key, axes) in enumerate(AXES):
            kept = canonical_shape(group[key].shape, axes, segment)
            values = np.asarray(group[key])[tuple(slice(size) for size in kept)]
            mask = valid_mask(axes, kept, segment)
            counted = values.size if mask is None else int(np.broadcast_to(mask, kept).sum())
            expected = summarise(values, mask)
            for row in (device[layer][edge], folded[layer][edge]):
                found = summary_of(row, counted)
                assert (found.min, found.max) == (expected.min, expected.max), key
                assert (found.nan, found.inf) == (expected.nan, expected.inf), key
                assert found.mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-12)
                assert found.l2 == pytest.approx(expected.l2, rel=1e-9)


def test_a_forward_without_a_valid_element_has_no_numbers() -> None:
    summary = summary_of([float("inf"), float("-inf"), 0.0, 0.0, 2.0, 0.0], 3)
    assert (summary.min, summary.max, summary.mean, summary.l2) == (None, None, None, None)
    assert (summary.nan, summary.inf) == (2, 1)
