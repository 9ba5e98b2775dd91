"""A model's config and tensor headers, as expressions ask for them."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from cke.dsl.evaluate import UNKNOWN, Absent, Value
from cke.dsl.reads import KeyPath
from cke.schemas.model_source import ModelSource


class NoModel:
    """Stands in for a model in checks without a config: every key is unknown."""

    format = "unknown"

    def key(self, path: KeyPath) -> Value:
        """Return UNKNOWN."""
        return UNKNOWN

    def full_key(self, key: str) -> Value:
        """Return UNKNOWN."""
        return UNKNOWN

    def has(self, tensor: str) -> Value:
        """Return UNKNOWN."""
        return UNKNOWN

    def size(self, tensor: str, axis: int) -> Value:
        """Return UNKNOWN."""
        return UNKNOWN

    def tensor(self, name: str) -> Value:
        """Return UNKNOWN."""
        return UNKNOWN


class OpenModel:
    """A model folder or file; keys of the other format are absent.

    `under` is the table of a wrapped HF config that holds the text model's own. A GGUF key takes
    the prefix of its architecture. A model without tensor headers has no tensor.
    """

    def __init__(self, source: ModelSource, under: str | None = None) -> None:
        self.source = source
        self.format: str = source.format
        self.root = _table_at(source.config, under)
        self.prefix = f"{source.config.get('general.architecture', '')}."

    def key(self, path: KeyPath) -> Value:
        """Return the value of a key, or Absent."""
        if path.format != self.format:
            return Absent((str(path),))
        if self.format == "gguf":
            return self.full_key(self.prefix + ".".join(path.path))
        value: Any = self.root
        for name in path.path:
            if not isinstance(value, Mapping) or name not in value:
                return Absent((str(path),))
            value = value[name]
        return _finite(value)

    def full_key(self, key: str) -> Value:
        """Return the value of a GGUF key with its prefix, or Absent."""
        if self.format != "gguf" or key not in self.source.config:
            return Absent((f'gguf["{key}"]',))
        return self.source.config[key]

    def has(self, tensor: str) -> Value:
        """Tell whether the file holds a tensor."""
        return self.source.tensors is not None and tensor in self.source.tensors

    def size(self, tensor: str, axis: int) -> Value:
        """Return a tensor's extent, or Absent."""
        info = (self.source.tensors or {}).get(tensor)
        if info is None or not 0 <= axis < len(info.shape):
            return Absent((f'size("{tensor}", {axis})',))
        return info.shape[axis]

    def tensor(self, name: str) -> Value:
        """Return a small tensor's elements, or Absent."""
        if name not in (self.source.tensors or {}):
            return Absent((f'tensor("{name}")',))
        return [float(value) for value in self.source.values(name)]


def _finite(value: Any) -> Any:
    """Return the value with infinities as none: a bound at infinity is no bound.

    transformers writes them as `{"__float__": "Infinity"}`.
    """
    if isinstance(value, Mapping) and set(value) == {"__float__"}:
        return _finite(float(value["__float__"]))
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _table_at(config: Mapping[str, Any], under: str | None) -> Mapping[str, Any]:
    table: Any = config
    for name in under.split(".") if under else ():
        table = table.get(name, {}) if isinstance(table, Mapping) else {}
    return table if isinstance(table, Mapping) else {}
