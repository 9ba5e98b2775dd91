"""The catalogue of diagnostic codes, read from the tables under ``codes/``."""

import functools
import tomllib
from importlib import resources
from typing import Any

import msgspec


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One diagnostic code: what it means, how to fix it, and an example that fails with it.

    `example` is a path under ``tests/``, a short circuit text, or a table: `command` with `files`
    (a command line to run), or `test` (the test that shows it).
    """

    title: str
    explanation: str
    fix: str
    example: str | dict[str, Any]


@functools.cache
def catalogue() -> dict[str, Code]:
    """Every code with its page, in order; a code stands in one table only."""
    found: dict[str, Code] = {}
    for file in sorted(resources.files("cke.errors").joinpath("codes").iterdir(), key=str):
        if not file.name.endswith(".toml"):
            continue
        for code, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
            assert code not in found, f"{file.name}: `{code}` stands in another table too"
            found[code] = msgspec.convert(table, Code)
    return dict(sorted(found.items()))
