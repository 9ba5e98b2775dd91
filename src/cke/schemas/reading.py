"""The one reader of untrusted JSON, and strict writing.

Reading is bounded (bytes, depth, keys, items) and strict: regular file, UTF-8 without BOM, no
duplicate key, no NaN or infinity, no number that overflows, no change while it is read. Errors
carry the JSON path. Writing goes to a temporary file beside the target, is synced, then renamed.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import msgspec

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.errors.files import write_atomically

T = TypeVar("T")
MAX_SAFE_INTEGER = 2**53 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_OUTSIDE = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a document may hold; the defaults suit configs and reports."""

    max_bytes: int = 16 << 20
    max_depth: int = 64
    max_keys: int = 1 << 20
    max_items: int = 1 << 22
    links: bool = True
    big_integers: bool = False


DEFAULT = Limits()


def read_bytes(path: Path, limits: Limits = DEFAULT) -> bytes:
    """Return the content of a regular file within the limits; raises CkeError otherwise.

    Links are followed only when `limits.links`; a FIFO, a device or a folder is refused, as is a
    file that changes while it is read.
    """
    with open_regular(path, links=limits.links) as file:
        before = os.fstat(file.fileno())
        if before.st_size > limits.max_bytes:
            raise _bad(
                path, "$", f"expected at most {limits.max_bytes} bytes, got {before.st_size}"
            )
        raw = file.read(limits.max_bytes + 1)
        after = os.fstat(file.fileno())
    if len(raw) != before.st_size or _changed(before, after):
        raise _bad(path, "$", "the file changed while it was read")
    return raw


def open_regular(path: Path, *, links: bool = True) -> BinaryIO:
    """Return the regular file, opened without waiting; anything else is CKE801 or CKE802."""
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise MissingInputError(
            Diagnostic(code="CKE801", file=path.name, message="expected a file, got none")
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _bad(path, "$", f"expected a readable regular file: {reason.lower()}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _bad(path, "$", "expected a regular file")
    return os.fdopen(descriptor, "rb")


def shown(text: str, limit: int = 80) -> str:
    """Return text of an untrusted file as an error may print it: one line, cut, printable."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(item if item.isprintable() else ascii(item)[1:-1] for item in cut)


def read_json(path: Path, limits: Limits = DEFAULT, *, max_bytes: int | None = None) -> Any:
    """Return the strict JSON value of a file; see the module's text for what is refused."""
    if max_bytes is not None:
        limits = msgspec.structs.replace(limits, max_bytes=max_bytes)
    return parse_json(read_bytes(path, limits), path, limits)


def parse_json(raw: bytes, path: Path, limits: Limits = DEFAULT) -> Any:
    """Return the strict JSON value of `raw`; `path` names it in errors."""
    if raw.startswith(b"\xef\xbb\xbf"):
        raise _bad(path, "$", "expected UTF-8 without a byte order mark")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(path, "$", f"expected UTF-8, got other bytes at {error.start}") from None
    _check_depth(text, path, limits)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_constant=lambda name: _NotFinite(name),
            parse_float=_float,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise _bad(
            path, "$", f"expected JSON: {error.msg.lower()} at {error.lineno}:{error.colno}"
        ) from None
    return _Checker(path, limits).plain(value, "$")


def decode(raw: bytes, kind: type[T], path: Path, limits: Limits = DEFAULT) -> T:
    """Return the struct of strict JSON bytes; a wrong type or key is an error with its path."""
    return convert(parse_json(raw, path, limits), kind, path)


def convert(value: Any, kind: type[T], path: Path) -> T:
    """Return `value` as a struct, strictly: a boolean is no integer, an unknown key is an error."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `")
        raise _bad(path, where.rstrip("`") or "$", _lower_first(message)) from None


def canonical_json(value: Any) -> bytes:
    """Return RFC 8785 bytes of a struct or plain value, for hashing; non-finite floats by name."""
    import rfc8785  # the attention packet analyzer reads with NumPy and msgspec alone

    return rfc8785.dumps(_finite(msgspec.to_builtins(value)))


def canonical_sha256(value: Any) -> str:
    """Return the sha256 of the canonical JSON, as lower-case hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def stated(value: float) -> float | str:
    """Return a float as strict JSON can hold it: non-finite ones as their names."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def to_json(value: Any, indent: int = 2) -> bytes:
    """Return readable strict JSON of a struct or plain value, with non-finite floats stated."""
    plain = _finite(msgspec.to_builtins(value))
    text = json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` to `path` as a whole or not at all; the old file stays until the new one is.

    Raises CkeError (CKE803) when it cannot be written.
    """
    try:
        write_atomically(path, data, mode=mode)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> CkeError:
    return CkeError(
        Diagnostic(
            code="CKE803",
            file=path.name,
            message=f"the file could not be written: {error.strerror}",
            notes=(Note("the old file, if any, is as it was", label="note"),),
        )
    )


class _Pairs:
    """An object as it was written: pairs in order, duplicates included."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


class _NotFinite:
    """A number that JSON or a double cannot hold."""

    def __init__(self, text: str) -> None:
        self.text = text


def _float(text: str) -> float | _NotFinite:
    value = float(text)
    return value if math.isfinite(value) else _NotFinite(text)


def _integer(text: str) -> int | _NotFinite:
    return int(text) if len(text) < 400 else _NotFinite(text[:20] + "…")


class _Checker:
    """Turns parsed values into plain ones, counting keys and items."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.keys = self.items = 0

    def plain(self, value: Any, where: str) -> Any:
        if isinstance(value, _Pairs):
            return self._object(value, where)
        if isinstance(value, list):
            self.items += len(value)
            if self.items > self.limits.max_items:
                self._refuse(where, f"expected at most {self.limits.max_items} items")
            return [self.plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, _NotFinite):
            self._refuse(where, f"expected a finite number, got {value.text}")
        if type(value) is int and abs(value) > MAX_SAFE_INTEGER and not self.limits.big_integers:
            self._refuse(where, f"expected an integer of at most 2^53 - 1, got {value}")
        if isinstance(value, str):
            self._check_text(value, where)
        return value

    def _check_text(self, value: str, where: str) -> None:
        if _SURROGATE.search(value):
            self._refuse(where, "expected Unicode text, got a lone surrogate")

    def _object(self, value: _Pairs, where: str) -> dict[str, Any]:
        self.keys += len(value.pairs)
        if self.keys > self.limits.max_keys:
            self._refuse(where, f"expected at most {self.limits.max_keys} keys")
        result: dict[str, Any] = {}
        for key, item in value.pairs:
            inner = f"{where}.{shown(key)}"
            self._check_text(key, inner)
            if key in result:
                self._refuse(inner, "the key stands twice")
            result[key] = self.plain(item, inner)
        return result

    def _refuse(self, where: str, message: str) -> NoReturn:
        raise _bad(self.path, where, message)


def _check_depth(text: str, path: Path, limits: Limits) -> None:
    depth = 0
    for token in _brackets(text):
        depth += 1 if token in "[{" else -1
        if depth > limits.max_depth:
            raise _bad(path, "$", f"expected at most {limits.max_depth} levels of nesting")


def _brackets(text: str) -> Iterator[str]:
    for match in _OUTSIDE.finditer(text):
        if match[0] in "[]{}":
            yield match[0]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return stated(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _changed(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns, before.st_ino) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ino,
    )


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _bad(path: Path, where: str, message: str) -> CkeError:
    return CkeError(Diagnostic(code="CKE802", file=path.name, path=where, message=message))
