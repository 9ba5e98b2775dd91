"""The shared strict reader and the atomic writer."""

import os
from pathlib import Path

import pytest

from cke.errors import CkeError, MissingInputError
from cke.schemas.reading import Limits, parse_json, read_json, to_json, write_atomic
from tests.schemas.hostile import HOSTILE_DOCUMENTS

HERE = Path("x.json")


@pytest.mark.parametrize(("raw", "message"), HOSTILE_DOCUMENTS.values(), ids=HOSTILE_DOCUMENTS)
def test_hostile_documents_are_refused_with_their_path(raw: bytes, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        parse_json(raw, HERE)
    assert str(caught.value) == f"x.json: {message}"


def test_brackets_inside_strings_do_not_nest() -> None:
    assert parse_json(b'{"a": "[[[[\\"[["}', HERE, Limits(max_depth=1)) == {"a": '[[[["[['}


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(CkeError, match="expected a regular file"):
        read_json(fifo)


def test_a_link_is_refused_where_links_are_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert read_json(tmp_path / "link") == {}
    with pytest.raises(CkeError, match="CKE802"):
        read_json(tmp_path / "link", Limits(links=False))


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b" " * 100)
    with pytest.raises(CkeError, match="expected at most 10 bytes, got 100"):
        read_json(tmp_path / "big", Limits(max_bytes=10))


def test_a_missing_file_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"CKE801\]: expected a file, got none"):
        read_json(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CkeError, match=r"CKE803\]: the file could not be written: No space left"):
        write_atomic(target, b"new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_non_finite_numbers_are_written_as_their_names() -> None:
    assert to_json({"a": float("nan"), "b": float("-inf")}, indent=0) == (
        b'{\n"a": "NaN",\n"b": "-Infinity"\n}\n'
    )
