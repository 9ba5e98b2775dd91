"""Documents that no reader of ours accepts, with the error text; shared by every reader's tests."""

import os
from collections.abc import Callable
from pathlib import Path

HOSTILE_DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "duplicate key": (b'{"a": 1, "a": 2}', "`$.a`: error[CKE802]: the key stands twice"),
    "NaN literal": (
        b'{"a": NaN}',
        "`$.a`: error[CKE802]: expected a finite number, got NaN",
    ),
    "overflowing float": (
        b'{"a": [1e400]}',
        "`$.a[0]`: error[CKE802]: expected a finite number, got 1e400",
    ),
    "integer beyond 2^53": (
        b"[9007199254740993]",
        "`$[0]`: error[CKE802]: expected an integer of at most 2^53 - 1, got 9007199254740993",
    ),
    "deep nesting": (
        b"[" * 70 + b"]" * 70,
        "`$`: error[CKE802]: expected at most 64 levels of nesting",
    ),
    "byte order mark": (
        b"\xef\xbb\xbf{}",
        "`$`: error[CKE802]: expected UTF-8 without a byte order mark",
    ),
    "not UTF-8": (b'{"a": "\xff"}', "`$`: error[CKE802]: expected UTF-8, got other bytes at 7"),
    "lone surrogate": (
        b'["\\ud800"]',
        "`$[0]`: error[CKE802]: expected Unicode text, got a lone surrogate",
    ),
    "cut short": (b'{"a": 1', "`$`: error[CKE802]: expected JSON: expecting ',' delimiter at 1:8"),
    "empty": (b"", "`$`: error[CKE802]: expected JSON: expecting value at 1:1"),
}


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


HOSTILE_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (_fifo, "expected a regular file"),
    "folder": (_folder, "expected a regular file"),
    "device": (_device, "expected a regular file"),
    "dangling link": (_dangling, "expected a file, got none"),
    "loop of links": (_loop, "expected a readable regular file: too many levels of symbolic links"),
    "a tebibyte of holes": (_large, "bytes, got 1099511627776"),
}
"""Files that are none: each is made at a path, and refused with a text that holds this."""
