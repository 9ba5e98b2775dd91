"""`cke doctor`, `cke cache` and `cke schema`."""

import json
from pathlib import Path

import jsonschema
import pytest

from cke.cli import doctor, main
from cke.errors.files import write_atomically


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CKE_CACHE_DIR", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_doctor_names_the_command_for_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", (("no-such-package", "jax", "run a model"),))
    assert main(["doctor"]) == 3
    assert "no-such-package, to run a model: pip install 'cke[jax]'" in capsys.readouterr().out


def test_doctor_is_content_without_an_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", (("no-such-package", "torch", "compare"),))
    assert main(["doctor"]) == 0


def test_cache_lists_and_clears_areas(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_atomically(cache / "builds" / "x" / "a", b"12345")
    write_atomically(cache / "crashes" / "b", b"1")
    assert main(["cache", "list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["areas"] == [
        {"name": "builds", "files": 1, "size": 5},
        {"name": "crashes", "files": 1, "size": 1},
    ]
    assert main(["cache", "clear", "builds"]) == 0
    assert [path.name for path in cache.iterdir()] == ["crashes"]
    assert main(["cache", "clear"]) == 0
    assert list(cache.iterdir()) == []


def test_cache_clear_follows_no_link(cache: Path, tmp_path: Path) -> None:
    write_atomically(tmp_path / "precious" / "a", b"1")
    (cache / "builds").mkdir(parents=True)
    (cache / "builds" / "link").symlink_to(tmp_path / "precious")
    assert main(["cache", "clear"]) == 0
    assert (tmp_path / "precious" / "a").read_bytes() == b"1"


def test_cache_refuses_an_area_outside(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.mkdir()
    assert main(["cache", "clear", "../precious"]) == 2
    assert capsys.readouterr().err == (
        "error[CKE908]: expected an area of the cache (none yet), got `../precious`\n"
        "  help: `cke cache list` shows the areas\n"
    )


def test_schema_is_a_valid_schema(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    names = capsys.readouterr().out.split()
    assert "cke.checkpoint_manifest.v1" in names
    for name in names:
        assert main(["schema", name]) == 0
        jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def test_schema_is_written_to_a_file(cache: Path, tmp_path: Path) -> None:
    assert main(["schema", "cke.checkpoint_manifest.v1", "-o", "deep/schema.json"]) == 0
    assert json.loads(tmp_path.joinpath("deep/schema.json").read_text())
