"""Files and folders appear whole or not at all."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cke.errors.files import cache_folder, folder_atomically, write_atomically


def test_write_makes_folders_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b.txt", b"text")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text"
    assert os.listdir(tmp_path / "a") == ["b.txt"]


def test_device_is_written_to_and_stays() -> None:
    ours, theirs = os.openpty()
    try:
        name = Path(os.ttyname(theirs))
        device = name.stat()
        write_atomically(name, b"text\n")
        assert os.read(ours, 16).split() == [b"text"]
        assert name.stat().st_rdev == device.st_rdev
        assert name.is_char_device()
    finally:
        os.close(ours)
        os.close(theirs)


def test_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(path, b"text")
        assert os.read(reader, 16) == b"text"
        assert path.is_fifo()
    finally:
        os.close(reader)


def test_redirected_stdout_is_written_to_and_its_link_stays(tmp_path: Path) -> None:
    with tmp_path.joinpath("out.txt").open("wb") as file:
        link = Path(f"/proc/self/fd/{file.fileno()}")
        write_atomically(link, b"text")
        assert link.is_symlink()
    assert os.listdir(tmp_path) == ["out.txt"]
    assert tmp_path.joinpath("out.txt").read_bytes() == b"text"


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.txt"
    path.write_bytes(b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["b.txt"]


def test_written_file_has_the_usual_mode(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "b.txt", b"")
    finally:
        os.umask(mask)
    assert (tmp_path / "b.txt").stat().st_mode & 0o777 == 0o644


def test_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "package"
    with folder_atomically(target) as folder:
        folder.joinpath("x").write_text("1")
        assert not target.exists()
    assert target.joinpath("x").read_text() == "1"
    assert os.listdir(tmp_path) == ["package"]


def test_interrupted_folder_vanishes_and_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "package"
    target.mkdir()
    target.joinpath("old").write_text("1")

    def interrupted() -> None:
        with folder_atomically(target) as folder:
            folder.joinpath("new").write_text("2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["package"]
    assert os.listdir(target) == ["old"]


def test_folder_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "package"
    for name in ("old", "new"):
        with folder_atomically(target) as folder:
            folder.joinpath(name).write_text("1")
    assert os.listdir(target) == ["new"]
    assert os.listdir(tmp_path) == ["package"]


def test_folder_that_is_kept_stays_as_it_was_first(tmp_path: Path) -> None:
    target = tmp_path / "package"
    for name in ("first", "second"):
        with folder_atomically(target, keep=True) as folder:
            folder.joinpath(name).write_text("1")
    assert os.listdir(target) == ["first"]
    assert os.listdir(tmp_path) == ["package"]


def test_writers_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "package"

    def write(number: int) -> None:
        with folder_atomically(target) as folder:
            for name in ("a", "b"):
                folder.joinpath(name).write_text(str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(64)))
    assert {path.name for path in target.iterdir()} == {"a", "b"}
    assert len({path.read_text() for path in target.iterdir()}) == 1
    assert os.listdir(tmp_path) == ["package"]


def test_modes_are_those_of_the_user_unless_one_is_given(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "usual", b"")
        write_atomically(tmp_path / "private", b"", mode=0o600)
        with folder_atomically(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"usual": 0o640, "private": 0o600, "folder": 0o750}


def test_cache_folder_follows_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKE_CACHE_DIR", str(tmp_path))
    assert cache_folder("a", "b") == tmp_path / "a" / "b"
