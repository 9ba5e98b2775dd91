"""Prompts of bf16 controls: the oracle alone decides every first token and every expert."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cke.oracles.open import open_oracle
from cke.runtime.schedule import CaptureRequest
from cke.schemas.trace import Record
from cke.validator.decided import CHOICES, is_decided, write_request
from cke.validator.models import make_model
from cke.validator.requests import REQUESTS

pytestmark = [pytest.mark.oracle_torch, pytest.mark.slow]


@contextmanager
def one_thread() -> Iterator[None]:
    """Give torch its threads back afterwards."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class _All:
    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    def add(self, record: Record, array: np.ndarray) -> None:
        self.found[record.checkpoint_id] = array.astype(np.float64)


def _choices(model: Path, dtype: str, row: list[int]) -> dict[str, np.ndarray]:
    sink = _All()
    request = CaptureRequest(tokens=(tuple(row),), edges=CHOICES)
    open_oracle("pytorch", model, dtype).capture(request, sink)
    return sink.found


def test_a_decided_prompt_is_chosen_alike_in_both_dtypes(tmp_path: Path) -> None:
    make_model("mixtral", tmp_path / "mixtral")
    with one_thread():
        write_request(tmp_path / "mixtral", "batch", tmp_path / "asked" / "batch.json")
    asked = json.loads((tmp_path / "asked" / "batch.json").read_bytes())
    assert [len(row) for row in asked["tokens"]] == list(REQUESTS["batch"]["lengths"])
    assert len(asked["forced"]) == REQUESTS["batch"]["steps"]
    for index, row in enumerate(asked["tokens"]):
        whole = [*row, *(step[index] for step in asked["forced"])]
        exact, rounded = (_choices(tmp_path / "mixtral", dtype, whole) for dtype in ("f32", "bf16"))
        assert len(exact) == 7
        for name, values in exact.items():
            if name.endswith("router_ids"):
                np.testing.assert_array_equal(values, rounded[name])
                continue
            kept = 1 if name == "logits" else 2
            chosen, other = (
                np.argsort(-item.reshape(len(whole), -1), axis=1)[:, :kept]
                for item in (values, rounded[name])
            )
            np.testing.assert_array_equal(chosen, other)


def test_a_choice_inside_the_drift_is_not_decided() -> None:
    exact = {"logits": np.array([3.0, 2.0, 1.0]), "router": np.array([3.0, 2.0, 1.9])}
    drift = {"logits": np.array([3.1, 2.0, 1.0]), "router": np.array([3.0, 2.0, 1.9])}
    assert is_decided(exact, drift, 1)
    assert is_decided(exact, exact, 2)
    assert not is_decided(exact, {**drift, "router": np.array([3.0, 2.1, 1.9])}, 2)
    assert not is_decided(exact, {**drift, "logits": np.array([2.0, 2.0, 1.0])}, 1)
    ids = {"mlp.router_ids": np.array([0.0, 1.0])}
    assert is_decided(ids, ids, 2)
    assert not is_decided(ids, {"mlp.router_ids": np.array([1.0, 0.0])}, 2)
    assert not is_decided({"logits": np.array([2.0, 2.0])}, {"logits": np.array([2.0, 2.0])}, 1)
