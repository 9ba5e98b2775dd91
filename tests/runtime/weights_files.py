"""Small weights files for tests, sound or lying, written byte by byte."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4}


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file of a header (a value, or raw bytes) and its data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def sound_safetensors() -> bytes:
    """Two tensors, 24 bytes of data."""
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry(0, 16, [2, 2]),
        "b": entry(16, 24, [4], "BF16"),
    }
    return safetensors_bytes(header, bytes(range(24)))


def write_folder(folder: Path, files: dict[str, Any]) -> Path:
    """A model folder with a config; a value that is not bytes is written as JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in {"config.json": CONFIG, **files}.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(raw)
    return folder


def gguf_text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata pair with the value as it stands in the file."""
    return gguf_text(key) + struct.pack("<I", kind) + value


def gguf_tensor(name: str | bytes, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """A tensor's header; sizes are fastest first, as in the file."""
    row = gguf_text(name) + struct.pack("<I", len(sizes))
    return (
        row + b"".join(struct.pack("<Q", size) for size in sizes) + struct.pack("<IQ", kind, offset)
    )


ARCHITECTURE = gguf_pair("general.architecture", 8, gguf_text("llama"))


def gguf_bytes(
    pairs: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file; `counts` overrides the stated numbers of tensors and pairs."""
    stated = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, *stated) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def sound_gguf() -> bytes:
    """Two tensors, a vocabulary, numbers and a nested alignment: 96 bytes of data."""
    tokens = struct.pack("<IQ", 8, 3) + gguf_text("a") + gguf_text("b") + gguf_text("ć")
    pairs = [
        ARCHITECTURE,
        gguf_pair("llama.block_count", 4, struct.pack("<I", 2)),
        gguf_pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        gguf_pair("tokenizer.ggml.tokens", 9, tokens),
    ]
    tensors = [gguf_tensor("a.weight", [4, 2]), gguf_tensor("b.weight", [32, 1], 2, 32)]
    return gguf_bytes(pairs, tensors, bytes(range(64)))


def write_gguf(path: Path, tensors: dict[str, tuple[np.ndarray, str]], **metadata: Any) -> Path:
    """A GGUF file of the gguf package's own writer; arrays are f32, quantised as named.

    A storage that the package cannot quantise takes random bytes as blocks.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), *value)
    for name, (array, storage) in tensors.items():
        kind = gguf.GGMLQuantizationType[storage]
        writer.add_tensor(name, stored(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The array in a storage, as bytes or floats."""
    try:
        return gguf.quants.quantize(array, kind)
    except NotImplementedError:
        block, width = gguf.GGML_QUANT_SIZES[kind]
        generator = np.random.default_rng(7)
        shape = (*array.shape[:-1], array.shape[-1] // block, width)
        raw = generator.integers(0, 256, shape, np.uint8)
        return _finite_scales(raw, kind.name).reshape(*array.shape[:-1], -1)


def _finite_scales(raw: np.ndarray, name: str) -> np.ndarray:
    """Random blocks whose f16 scales are small and finite."""
    places = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}
    for place in places[name]:
        raw[..., place : place + 2] = np.array([0.01], np.float16).view(np.uint8)
    return raw
