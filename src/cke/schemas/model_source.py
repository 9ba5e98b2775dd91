"""What the compiler may know of a model: its config and the headers of its tensors."""

from typing import Any, Literal, Protocol

import msgspec


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor's header: shape (slowest axis first) and storage type, such as F32 or Q4_1."""

    shape: tuple[int, ...]
    storage: str


class ModelSource(Protocol):
    """A model folder or file, opened; values stay on disk.

    `config` is config.json as parsed, or the metadata of a GGUF file. `tensors` is None when only
    a config is at hand.
    """

    format: Literal["hf", "gguf"]
    name: str
    config: dict[str, Any]
    tensors: dict[str, TensorInfo] | None

    def values(self, key: str) -> list[float]:
        """Return the elements of a small tensor, such as rope factors."""
        ...
