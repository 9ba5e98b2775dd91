"""The shared strict reader and the atomic writer."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cke.errors import CkeError, MissingInputError
from cke.schemas.reading import (
    Limits,
    canonical_json,
    decode,
    parse_json,
    read_json,
    shown,
    to_json,
    write_atomic,
)
from tests.schemas.hostile import HOSTILE_DOCUMENTS, HOSTILE_FILES

HERE = Path("x.json")


@pytest.mark.parametrize(("raw", "message"), HOSTILE_DOCUMENTS.values(), ids=HOSTILE_DOCUMENTS)
def test_hostile_documents_are_refused_with_their_path(raw: bytes, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        parse_json(raw, HERE)
    assert str(caught.value) == f"x.json: {message}"


def test_brackets_inside_strings_do_not_nest() -> None:
    assert parse_json(b'{"a": "[[[[\\"[["}', HERE, Limits(max_depth=1)) == {"a": '[[[["[['}


@pytest.mark.parametrize(("make", "message"), HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_a_file_that_is_none_is_refused_without_waiting(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "x.json")
    with pytest.raises(CkeError, match=rf"^x\.json: .*{message}"):
        read_json(tmp_path / "x.json")


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.json").write_text("{}")
    real, calls = os.fstat, []

    def changing(descriptor: int) -> os.stat_result:
        calls.append(descriptor)
        if len(calls) == 3:
            (tmp_path / "x.json").write_text("[1]")
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", changing)
    with pytest.raises(CkeError) as caught:
        read_json(tmp_path / "x.json")
    assert str(caught.value) == ("x.json: `$`: error[CKE802]: the file changed while it was read")


class Counted(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    inner: list[float] = []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"count": true}', "`$.count`: error[CKE802]: expected `int`, got `bool`"),
        (b'{"count": 1.5}', "`$.count`: error[CKE802]: expected `int`, got `float`"),
        (b'{"count": "1"}', "`$.count`: error[CKE802]: expected `int`, got `str`"),
        (b"{}", "`$`: error[CKE802]: object missing required field `count`"),
        (b'{"count": 1, "x": 2}', "`$`: error[CKE802]: object contains unknown field `x`"),
        (b'{"count": 1, "inner": [1, null]}',
         "`$.inner[1]`: error[CKE802]: expected `float`, got `null`"),
    ],
)  # fmt: skip
def test_a_struct_is_read_strictly_with_its_path(raw: bytes, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        decode(raw, Counted, HERE)
    assert str(caught.value) == f"x.json: {message}"


@pytest.mark.parametrize(
    ("raw", "limits", "message"),
    [
        (b'{"a": {"b": 1}}', Limits(max_keys=1), "`$.a`: error[CKE802]: expected at most 1 keys"),
        (b"[[1], [2, 3]]", Limits(max_items=4), "`$[1]`: error[CKE802]: expected at most 4 items"),
        (b'{"\\ud800": 1}', Limits(),
         "`$.\\ud800`: error[CKE802]: expected Unicode text, got a lone surrogate"),
        (b"[%s]" % (b"9" * 5000), Limits(big_integers=True),
         "`$[0]`: error[CKE802]: expected a finite number, got 99999999999999999999…"),
    ],
    ids=["keys", "items", "surrogate key", "digits"],
)  # fmt: skip
def test_what_a_document_may_hold_is_bounded(raw: bytes, limits: Limits, message: str) -> None:
    with pytest.raises(CkeError) as caught:
        parse_json(raw, HERE, limits)
    assert str(caught.value) == f"x.json: {message}"


def test_canonical_json_names_non_finite_numbers_and_sorts_keys() -> None:
    value = {"b": float("nan"), "a": [1.0, float("inf")]}
    assert canonical_json(value) == b'{"a":[1,"Infinity"],"b":"NaN"}'


def test_untrusted_text_is_shown_on_one_line() -> None:
    assert shown("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert shown("x" * 100) == "x" * 80 + "…"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text('[]{}",:01e-.\\u', max_size=60).map(str.encode))
def test_any_bytes_are_read_as_json_does_or_refused(raw: bytes) -> None:
    try:
        value = parse_json(raw, HERE)
    except CkeError:
        return
    assert value == json.loads(raw)


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
