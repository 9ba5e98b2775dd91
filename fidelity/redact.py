"""Credentials: never recorded, never rendered, never published.

Two rules, in one place: names of variables and fields, and shapes of values. Publication refuses
on either, and nothing skips that.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REDACTED = "<set, redacted>"
NAME_WORDS = frozenset({"TOKEN", "KEY", "SECRET", "PASSWORD", "AUTH", "COOKIE", "SESSION"})
FIELD_NAMES = frozenset(
    {
        *("token", "api_key", "apikey", "password", "secret", "access_token", "auth_token"),
        *("hf_token", "secret_key", "private_key", "authorization", "cookie", "session_token"),
    }
)
"""Names that are exactly a credential's; `token_sha256` and `eos_token` are not."""
SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
PREFIXES = ("HF_", "JAX_", "XLA_", "CUDA_", "NVIDIA_", "CKE_", "OMP_", "TOKENIZERS_", "MONKEY")
"""Variables that an environment report watches."""
FIELD = re.compile(
    r'"([A-Za-z_]+)"\s*:\s*"((?:[^"\\]|\\.)*)"|^\s*([A-Za-z_]+)\s*[:=]\s*(\S+)\s*$', re.MULTILINE
)


def is_secret_name(name: str) -> bool:
    """Whether a variable's name has a whole word of a credential."""
    return bool(NAME_WORDS & set(name.upper().split("_")))


def watched(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the watched variables: a credential's as set and redacted, others with values."""
    return {
        name: REDACTED if is_secret_name(name) else redact_text(value)
        for name, value in sorted(variables.items())
        if name.startswith(PREFIXES) or is_secret_name(name)
    }


def redact_text(text: str) -> str:
    """Return text with every credential's shape replaced."""
    return SHAPES.sub(REDACTED, text)


def redact(value: Any, name: str = "") -> Any:
    """Return a document with values of credential names and shapes replaced."""
    match value:
        case dict():
            return {key: redact(item, str(key)) for key, item in value.items()}
        case list() | tuple():
            return [redact(item, name) for item in value]
        case str() if value and name.lower() in FIELD_NAMES:
            return REDACTED
        case str():
            return redact_text(value)
        case _:
            return value


def credentials(text: str) -> list[str]:
    """Return what looks like a credential in a text, without its value."""
    found = [f"the shape of a credential, `{m.group()[:4]}…`" for m in SHAPES.finditer(text)]
    for name, value in _named(text):
        if name.lower() in FIELD_NAMES and value not in ("", REDACTED, "null", "None"):
            found.append(f"the field `{name}` with a value")
    return found


def _named(text: str) -> Iterator[tuple[str, str]]:
    for match in FIELD.finditer(text):
        quoted, content, bare, value = match.groups()
        yield (
            (quoted, json.loads(f'"{content}"') if _decodes(content) else content)
            if quoted
            else (
                bare,
                value.strip("\"',"),
            )
        )


def _decodes(content: str) -> bool:
    try:
        json.loads(f'"{content}"')
    except json.JSONDecodeError:
        return False
    return True


def scan(folder: Path) -> list[str]:
    """Return every credential of every text file of a folder, as `path: what`."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            if b"\0" in raw[:4096]:
                continue
            text = raw.decode("utf-8", "replace")
            name = path.relative_to(folder).as_posix()
            found += [f"{name}: {what}" for what in credentials(text)]
    return found
