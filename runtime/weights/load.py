"""Semantic weights from a model's files: bindings applied, one weight at a time.

Moves are exact. Arithmetic (a norm's offset, a logarithm) is done in float64 and rounded once.
"""

from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cke.runtime.weights.dequantise import dequantise
from cke.runtime.weights.files import ModelFiles
from cke.schemas.bindings import Transform, WeightBinding

Array = NDArray[np.generic]
DTYPES: dict[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
}
ARITHMETIC = frozenset({"add", "negate", "log"})


class Weights(Mapping[str, Array]):
    """A lazy mapping of semantic name to array; nothing is kept between two reads.

    `dtype` overrides the dtype of every float weight: the reference reads f64.
    """

    def __init__(
        self, files: ModelFiles, bindings: Iterable[WeightBinding], dtype: str | None = None
    ) -> None:
        self.files = files
        self.bindings = {binding.semantic: binding for binding in bindings}
        self.dtype = dtype

    def __getitem__(self, semantic: str) -> Array:
        binding = self.bindings[self.canonical(semantic)]
        dtype = DTYPES[self.dtype or binding.type.dtype]
        exact = any(step.kind in ARITHMETIC for step in binding.transforms)
        reading = DTYPES["f64"] if exact else dtype
        parts = [dequantise(self.files.located[key], reading) for key in binding.sources]
        array = apply(parts, binding.transforms)
        if array.dtype != dtype:
            array = array.astype(dtype)
        assert array.shape == binding.type.shape, f"`{semantic}` was bound to another shape"
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.bindings)

    def __len__(self) -> int:
        return len(self.bindings)

    def canonical(self, semantic: str) -> str:
        """Return the name whose values a tied weight has, else the name itself."""
        binding = self.bindings[semantic]
        while binding.tied_to is not None:
            binding = self.bindings[binding.tied_to]
        return binding.semantic


def apply(parts: list[Array], transforms: tuple[Transform, ...]) -> Array:
    """Return the semantic array of the stored ones."""
    arrays = list(parts)
    for step in transforms:
        if step.kind == "stack":
            arrays = [np.stack(arrays, axis=step.arguments["axis"])]
            continue
        arrays = [_step(array, step) for array in arrays]
    assert len(arrays) == 1, "several sources and no stack"
    return arrays[0]


def _step(array: Array, step: Transform) -> Array:
    arguments = step.arguments
    match step.kind:
        case "reshape":
            return array.reshape(tuple(arguments["shape"]))
        case "transpose":
            return array.transpose(tuple(arguments["axes"]))
        case "slice":
            cut = slice(arguments["start"], arguments["stop"])
            part: Array = array[(slice(None),) * arguments["axis"] + (cut,)]
            return part
        case "add":
            return array.astype(np.float64) + np.float64(arguments["value"])
        case "negate":
            return np.negative(array.astype(np.float64))
        case "log":
            logarithm: Array = np.log(array.astype(np.float64))
            return logarithm
    raise AssertionError(f"unknown transform `{step.kind}`")
