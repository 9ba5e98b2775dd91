from pathlib import Path

import pytest

from cke.codegen.package import Package, package_diff, read_package, write_package
from cke.errors import CkeError

PACKAGE = Package("toy", {"__init__.py": b'"""Toy."""\n', "manifest.json": b'{"a":1}\n'})


def test_a_package_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_package(PACKAGE, tmp_path / "toy")
    assert read_package("toy", tmp_path / "toy") == PACKAGE


def test_a_package_replaces_the_one_that_stands(tmp_path: Path) -> None:
    write_package(Package("toy", {**PACKAGE.files, "old.py": b""}), tmp_path / "toy")
    write_package(PACKAGE, tmp_path / "toy")
    assert read_package("toy", tmp_path / "toy") == PACKAGE
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_an_interrupted_write_leaves_what_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(PACKAGE, tmp_path / "toy")

    def interrupt(self: Path, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_package(Package("toy", {"__init__.py": b"new"}), tmp_path / "toy")
    monkeypatch.undo()
    assert read_package("toy", tmp_path / "toy") == PACKAGE
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_folder_that_is_no_package_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("keep me")
    with pytest.raises(CkeError, match=r"error\[CKE571\]: expected a generated package"):
        write_package(PACKAGE, tmp_path / "letters")
    assert (tmp_path / "letters" / "dear.txt").read_text() == "keep me"


def test_a_diff_is_unified_and_reads_a_manifest_by_line() -> None:
    changed = Package("toy", {**PACKAGE.files, "manifest.json": b'{"a":2}\n'})
    assert package_diff(PACKAGE, changed).splitlines() == [
        "--- a/toy/manifest.json",
        "+++ b/toy/manifest.json",
        "@@ -1,3 +1,3 @@",
        " {",
        '- "a": 1',
        '+ "a": 2',
        " }",
    ]
    assert package_diff(PACKAGE, PACKAGE) == ""
