"""Write a GGUF file again with its tensors dequantised, so that llama.cpp computes in one dtype.

A quantised file makes llama.cpp quantise activations too; parity needs the dequantised weights in
an f32, f16 or bf16 file (the values are those that every other side loads). Metadata is copied.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cke.oracles.base import Array
from cke.oracles.gguf_writer import add_tensor, finish

KINDS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")
REPLACED = ("general.file_type", "general.quantization_version")


def stored_kinds(path: Path) -> dict[str, int]:
    """Return how many tensors the file stores in each type."""
    counts: dict[str, int] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    return counts


def is_stored_in(kinds: dict[str, int], dtype: str) -> bool:
    """Return whether a file of these kinds needs no rewriting: `dtype` beside f32 vectors."""
    return set(kinds) <= {KINDS[dtype], "F32"} and KINDS[dtype] in kinds


def dequantise_gguf(source: Path, target: Path, dtype: str = "f32") -> Path:
    """Write the model of `source` to `target` with every matrix in `dtype`."""
    reader, writer, temporary = copied_writer(source, target)
    for tensor in reader.tensors:
        add_tensor(writer, tensor.name, _values(tensor), dtype)
    return finish(writer, temporary, target)


def copied_writer(source: Path, target: Path) -> tuple[gguf.GGUFReader, gguf.GGUFWriter, Path]:
    """Return the reader of a file, and a writer with its metadata and no tensor yet."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    temporary = target.with_name(target.name + ".part")
    writer = gguf.GGUFWriter(temporary, architecture)
    for name, field in reader.fields.items():
        if name not in OWN + REPLACED:
            _copy(writer, name, field)
    return reader, writer, temporary


def _values(tensor: Any) -> Array:
    array: Array = gguf.dequantize(tensor.data, tensor.tensor_type)
    return array.astype(np.float32, copy=False)


def _copy(writer: gguf.GGUFWriter, name: str, field: Any) -> None:
    kind = field.types[0]
    sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)
