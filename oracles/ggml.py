"""The few ggml functions that llama-cpp-python does not bind, and ggml_tensor read by field."""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cke.oracles.base import Array

_FOLDER = Path(llama_cpp.__file__).parent / "lib"
_BASE = ctypes.CDLL(str(next(iter(sorted(_FOLDER.glob("libggml-base.*"))))))


QUIET = llama_cpp.llama_log_callback(lambda *_: None)
"""The callback that drops llama.cpp's messages; it has to outlive every call."""


class TensorHead(ctypes.Structure):
    """The leading fields of ggml_tensor, the same since 2024."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
    )


class TypeTraits(ctypes.Structure):
    """What ggml knows of a type; `to_float(blocks, values, count)` decodes its blocks."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


_BASE.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
_BASE.ggml_get_type_traits.argtypes = [ctypes.c_int]
_BASE.ggml_get_name.restype = ctypes.c_char_p
_BASE.ggml_get_name.argtypes = [ctypes.c_void_p]
_BASE.ggml_op_name.restype = ctypes.c_char_p
_BASE.ggml_op_name.argtypes = [ctypes.c_int]
_BASE.ggml_type_name.restype = ctypes.c_char_p
_BASE.ggml_type_name.argtypes = [ctypes.c_int]
_BASE.ggml_nbytes.restype = ctypes.c_size_t
_BASE.ggml_nbytes.argtypes = [ctypes.c_void_p]
_BASE.ggml_backend_tensor_get.restype = None
_BASE.ggml_backend_tensor_get.argtypes = [
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
]  # fmt: skip

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
}


def name_and_op(tensor: int) -> tuple[str, str]:
    """Return the name and the op of a graph tensor; names repeat, the pair does not."""
    head = TensorHead.from_address(tensor)
    name = _BASE.ggml_get_name(tensor).decode("utf-8", "replace")
    return name, _BASE.ggml_op_name(head.op).decode()


def op_float(tensor: int, index: int) -> float:
    """Return a float parameter of the tensor's op, such as the scale of a softmax."""
    head = TensorHead.from_address(tensor)
    return ctypes.c_float.from_buffer_copy(ctypes.c_int32(head.op_params[index])).value


def leaves(tensor: int) -> list[int]:
    """Return the sources of a graph tensor that are loaded weights."""
    sources = [source for source in TensorHead.from_address(tensor).src if source]
    return [source for source in sources if name_and_op(source)[0].endswith((".weight", ".bias"))]


def read_weight(tensor: int) -> Array:
    """Return a loaded weight, slowest axis first; ggml's own code decodes a quantised one."""
    head = TensorHead.from_address(tensor)
    kind = _BASE.ggml_type_name(head.type).decode()
    shape = tuple(reversed(head.ne[:]))
    lead = next((at for at, size in enumerate(shape[:-1]) if size > 1), len(shape) - 1)
    if kind in DTYPES:
        return read_tensor(tensor).reshape(shape[lead:])
    blocks, values = _bytes_of(tensor), np.empty(shape[lead:], np.float32)
    traits = _BASE.ggml_get_type_traits(head.type).contents
    traits.to_float(blocks.ctypes.data, values.ctypes.data, values.size)
    return values


def _bytes_of(tensor: int) -> NDArray[np.uint8]:
    raw = np.empty(_BASE.ggml_nbytes(tensor), np.uint8)
    _BASE.ggml_backend_tensor_get(tensor, raw.ctypes.data, 0, raw.nbytes)
    return raw


def read_tensor(tensor: int) -> Array:
    """Return the values, slowest axis first, strides undone; KeyError for quantised types."""
    head = TensorHead.from_address(tensor)
    dtype = np.dtype(DTYPES[_BASE.ggml_type_name(head.type).decode()])
    raw = _bytes_of(tensor)
    shape = tuple(reversed(head.ne[:]))
    strides = tuple(reversed(head.nb[:]))
    view = np.ndarray(shape, dtype, buffer=raw.data, strides=strides)
    return np.ascontiguousarray(view)
