"""The digest of a weights file is remembered until the file changes."""

import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from cke.runtime.weights.file_digest import Known, file_sha256
from cke.runtime.weights.located import stamp_of


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CKE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "weights.bin"
    path.write_bytes(b"one")
    return path


def _digest(file: Path) -> str:
    return file_sha256(file, stamp_of(file.stat()))


def _note(tmp_path: Path) -> Path:
    (note,) = (tmp_path / "cache" / "digests").iterdir()
    return note


def test_a_file_is_hashed_once_until_it_changes(file: Path, tmp_path: Path) -> None:
    assert _digest(file) == hashlib.sha256(b"one").hexdigest()
    note = _note(tmp_path)
    known = msgspec.json.decode(note.read_bytes(), type=Known)
    note.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, sha256="as noted")))
    assert _digest(file) == "as noted"
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert _digest(file) == hashlib.sha256(b"two").hexdigest()


def test_a_damaged_note_is_made_again(file: Path, tmp_path: Path) -> None:
    _digest(file)
    _note(tmp_path).write_text("{")
    assert _digest(file) == hashlib.sha256(b"one").hexdigest()
