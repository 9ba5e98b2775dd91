"""The weights that llama.cpp computes with, read from the sources of its own graph.

The product that makes a checkpoint names its weight itself: neither the file's tensor names nor
our map of them is read, because they may be what is wrong.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from cke.oracles.base import Array
from cke.oracles.ggml import leaves, name_and_op, read_weight
from cke.oracles.gguf_writer import NORM_PLUS_ONE
from cke.oracles.llamacpp import LlamaCppOracle, Recorder
from cke.oracles.points import GraphPoint
from cke.runtime.records import join_id
from cke.runtime.schedule import CaptureRequest, plan_segments
from cke.schemas.trace import Segment

OPERANDS = {
    "GET_ROWS": "weight", "MUL_MAT": "weight", "MUL_MAT_ID": "weight", "MUL": "weight",
    "ADD": "bias",
}  # fmt: skip
Key = tuple[str, str]
Source = tuple[int, GraphPoint, str]


class LoadedWeights(Mapping[Key, Array]):
    """Loaded weights by (checkpoint id, operand), dequantised, in the basis of the checkpoints.

    A weight is read when it is asked for, so that no second copy of the model is held.
    """

    def __init__(self, oracle: LlamaCppOracle) -> None:
        self.oracle = oracle
        request = CaptureRequest(tokens=((0,),))
        recorder = _Sources(oracle, request, plan_segments(request)[0])
        oracle.follow(recorder)
        self._found = recorder.found

    def __getitem__(self, key: Key) -> Array:
        tensor, point, op = self._found[key]
        array = read_weight(tensor)
        if op == "MUL" and self.oracle.architecture in NORM_PLUS_ONE:
            return array.astype(np.float64) - 1.0
        if point.pairs and self.oracle.pairs:
            return _unpaired(array, self.oracle.dims["K" if "K" in point.axes else "H"])
        return array

    def __iter__(self) -> Iterator[Key]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _Sources(Recorder):
    """Keeps which loaded tensor each checkpoint of a forward is made with; reads no value."""

    def __init__(self, oracle: LlamaCppOracle, request: CaptureRequest, segment: Segment) -> None:
        super().__init__(oracle, request, segment)
        self.found: dict[Key, Source] = {}

    def _lane(self, name: str, op: str) -> tuple[str, int] | None:
        return None

    def _keep(self, tensor: int, point: GraphPoint, layer: int | None) -> None:
        _, op = name_and_op(tensor)
        operand = OPERANDS.get(op)
        for leaf in leaves(tensor) if operand else ():
            self.found[join_id(point.point, layer), str(operand)] = (leaf, point, op)


def _unpaired(array: Array, heads: int) -> Array:
    """Undo the rope pairs of the file's basis in the rows of every head."""
    split = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(array.shape)
