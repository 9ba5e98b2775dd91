"""Replays of kernels and definitions: what a captured value becomes, op by op."""

import numpy as np

from cke.xray.replay import run_kernel


def test_a_kernel_takes_captured_arrays_as_generated_code_gives_its_own() -> None:
    slot = {
        "k": np.zeros((2, 3, 1), np.float32),
        "positions": np.array([[0, -1, -1], [0, 1, -1]], np.int32),
        "count": np.array([1, 2], np.int32),
    }
    row = np.array([[[5.0]], [[7.0]]], np.float32)
    positions = np.array([[1], [2]], np.int32)
    new, keys, _ = run_kernel("append", "append", [slot, positions, row], {"lanes": ["k"]})
    assert np.asarray(keys)[..., 0].tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, 7.0]]
    assert np.asarray(new["count"]).tolist() == [2, 3]
