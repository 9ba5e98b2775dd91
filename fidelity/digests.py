"""Digests of tokens, files and weights: framed, in a fixed order, by content."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK = 1 << 22


def token_sha256(contexts: Iterable[Sequence[int]]) -> str:
    """Return the SHA-256 of the decimal IDs joined by commas, contexts in the order given."""
    joined = ",".join(str(int(token)) for context in contexts for token in context)
    return hashlib.sha256(joined.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def weights_sha256(shards: Iterable[Path]) -> str:
    """Return the digest of each shard's name and every byte of it, headers too, by name.

    Name and size frame each shard, so that no byte moves from one to the next unseen; a link is
    read through. The folder's own name does not count.
    """
    digest = hashlib.sha256()
    for shard in sorted(set(shards), key=lambda path: path.name):
        name = shard.name.encode()
        size = shard.stat().st_size
        digest.update(f"{len(name)}:".encode() + name + f"{size}:".encode())
        with shard.open("rb") as stream:
            while block := stream.read(CHUNK):
                digest.update(block)
    return digest.hexdigest()


def arrays_sha256(arrays: Mapping[str, Any]) -> str:
    """Return the digest of named arrays: name, dtype, shape and bytes of each, by name."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(np.asarray(arrays[name]))
        digest.update(f"{name}:{array.dtype.name}:{list(array.shape)}:".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def framed_sha256(parts: Iterable[tuple[str, bytes]]) -> str:
    """Return the digest of labelled contents: each label and content with its length before it."""
    digest = hashlib.sha256()
    for label, content in parts:
        name = label.encode()
        digest.update(f"{len(name)}:".encode() + name + f"{len(content)}:".encode() + content)
    return digest.hexdigest()
