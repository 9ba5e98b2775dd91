"""Checkpoints that an oracle does not show, or computes otherwise: named, with the reason."""

import fnmatch
import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec


class Explained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One exception; `family`, `dtype` and `checkpoint` may hold `*`.

    With `onward`, what runs after the checkpoint computes with another choice, and is not compared.
    """

    oracle: str
    family: str
    dtype: str
    checkpoint: str
    kind: Literal["not_shown", "over"]
    why: str
    onward: bool = False


@cache
def exceptions() -> tuple[Explained, ...]:
    """Return every exception, in the order of the table."""
    text = (resources.files(__package__) / "exceptions.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["exception"], tuple[Explained, ...])


def explained(oracle: str, family: str, dtype: str, name: str, kind: str) -> Explained | None:
    """Return the exception that covers a checkpoint `name` (without its layer), or None."""
    for item in exceptions():
        if (item.oracle, item.kind) != (oracle, kind):
            continue
        pairs = ((family, item.family), (dtype, item.dtype), (name, item.checkpoint))
        if all(fnmatch.fnmatchcase(value, pattern) for value, pattern in pairs):
            return item
    return None
