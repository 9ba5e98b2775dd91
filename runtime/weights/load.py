"""Semantic weights from a model's files: bindings applied, one weight at a time.

Moves are exact. Arithmetic (a norm's offset, a logarithm) is done in float64 and rounded once.
Arrays start on a boundary that lets the CPU take them without a copy, so that the host holds one
copy of the weights in the run dtype, and one tensor more while it works.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cke.runtime.weights.dequantise import aligned_empty, dequantise, round_once, stored_dtype
from cke.runtime.weights.files import ModelFiles
from cke.schemas.bindings import Transform, WeightBinding

Array = NDArray[np.generic]
DType = np.dtype[np.generic]
DTYPES: dict[str, DType] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
}
ARITHMETIC = frozenset({"add", "negate", "log"})


class Weights(Mapping[str, Array]):
    """A lazy mapping of semantic name to array; nothing is kept between two reads.

    An array may be a read-only view of the file. `dtype` overrides the dtype of every float
    weight: the reference reads f64.
    """

    def __init__(
        self, files: ModelFiles, bindings: Iterable[WeightBinding], dtype: str | None = None
    ) -> None:
        self.files = files
        self.bindings = {binding.semantic: binding for binding in bindings}
        self.dtype = dtype

    def __getitem__(self, semantic: str) -> Array:
        return self._read(semantic, None)

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

    def fused(self, members: Sequence[str], axis: int = 0) -> Array:
        """Return the members joined along `axis`, each written straight to its place."""
        shapes = [self._shape(member) for member in members]
        width = sum(shape[axis] for shape in shapes)
        whole = aligned_empty(
            (*shapes[0][:axis], width, *shapes[0][axis + 1 :]), self._dtype(members[0])
        )
        at = 0
        for member, shape in zip(members, shapes, strict=True):
            place = (slice(None),) * axis + (slice(at, at + shape[axis]),)
            self._read(member, whole[place])
            at += shape[axis]
        return whole

    def _shape(self, semantic: str) -> tuple[int, ...]:
        sizes = self.bindings[self.canonical(semantic)].type.shape
        assert all(isinstance(size, int) for size in sizes), f"`{semantic}` has a symbolic shape"
        return tuple(int(size) for size in sizes)

    def _dtype(self, semantic: str) -> DType:
        return DTYPES[self.dtype or self.bindings[self.canonical(semantic)].type.dtype]

    def _read(self, semantic: str, out: Array | None) -> Array:
        """The values of a weight, written to `out` when it is given."""
        binding = self.bindings[self.canonical(semantic)]
        dtype = self._dtype(semantic)
        straight = out is not None and not binding.transforms and out.flags.c_contiguous
        array = self._moved(binding, dtype, out if straight else None)
        assert array.shape == self._shape(semantic), f"`{semantic}` was bound to another shape"
        if straight or (out is None and array.dtype == dtype):
            return array
        return round_once(array, dtype, out)

    def _moved(self, binding: WeightBinding, dtype: DType, out: Array | None) -> Array:
        """The sources with the transforms applied, not yet rounded to `dtype` where they need not.

        A tensor stored as floats is moved in its own dtype, so that a slice of it costs no more
        than the slice; a quantised one is decoded at once, to f32 when arithmetic follows.
        """
        located = [self.files.located[key] for key in binding.sources]
        steps = binding.transforms
        if out is not None:
            return dequantise(located[0], dtype, out)
        exact = any(step.kind in ARITHMETIC for step in steps)
        decoded = DTYPES["f32"] if exact else dtype
        if steps and steps[0].kind == "stack" and steps[0].arguments["axis"] == 0:
            reading = DTYPES["f64"] if exact else dtype
            whole = aligned_empty((len(located), *located[0].info.shape), reading)
            for index, tensor in enumerate(located):
                dequantise(tensor, reading, whole[index])
            return apply([whole], steps[1:])
        return apply([dequantise(item, stored_dtype(item) or decoded) for item in located], steps)


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
