"""What expressions read: names, and keys of the model's own config, by their text alone."""

from collections.abc import Iterable, Iterator

import msgspec

from cke.dsl import syntax


def walk(node: object) -> Iterator[syntax.Node]:
    """Yield a node and every node below it."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(reversed(current))
        elif isinstance(current, syntax.Node):
            yield current
            stack.extend(getattr(current, name) for name in reversed(current.__struct_fields__))


def read_names(nodes: Iterable[object]) -> set[str]:
    """Return every name that is read as a value."""
    return {item.name for node in nodes for item in walk(node) if isinstance(item, syntax.Name)}


class KeyPath(msgspec.Struct, frozen=True):
    """A key of a config: `hf` with `rope_parameters.factor`, or a GGUF key without its prefix."""

    format: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.format, *self.path))


def key_path(expression: syntax.Expression) -> KeyPath | None:
    """Return the key that a chain of names from `hf` or `gguf` stands for."""
    names: list[str] = []
    current = expression
    while isinstance(current, syntax.Get):
        names.insert(0, current.name)
        current = current.value
    if not isinstance(current, syntax.Root) or not names:
        return None
    return KeyPath(current.format, tuple(names))


def read_keys(nodes: Iterable[object]) -> dict[KeyPath, syntax.Node]:
    """Return the keys that the nodes read, each with a node that reads it."""
    found: dict[KeyPath, syntax.Node] = {}
    for node in nodes:
        for item in walk(node):
            if isinstance(item, syntax.Get):
                path = key_path(item)
                if path is not None:
                    found.setdefault(path, item)
    return found


def config_keys(nodes: Iterable[object]) -> set[str]:
    """Return the read keys as `ignore` names them: HF's first name, the whole of a GGUF key.

    A GGUF key of one word is left out: `ignore` of that word speaks of the HF key.
    """
    paths = read_keys(nodes)
    hf = {path.path[0] for path in paths if path.format == "hf"}
    return hf | {".".join(p.path) for p in paths if p.format == "gguf" and len(p.path) > 1}


def get_names(nodes: Iterable[object]) -> set[str]:
    """Return every name after a dot, which is how keys of a nested table are read."""
    return {item.name for node in nodes for item in walk(node) if isinstance(item, syntax.Get)}
