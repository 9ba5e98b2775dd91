"""Pages and schemas that tools make are up to date, and the code in the docs runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cke.cli import main
from cke.schemas.published import FORMATS, schema_text
from tools.generate_reference import NOTE, PAGES

BLOCK = re.compile(
    r"^```(?P<kind>\w+)\n(?P<text>.*?)^```\n(?:<!-- (?P<note>[\w ]+): (?P<value>.+?) -->)?",
    re.MULTILINE | re.DOTALL,
)
RUNNABLE = ("python", "sh")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_made_page_is_up_to_date(name: str, repository: Path, update_golden: bool) -> None:
    path = repository / "docs" / "reference" / name
    text = NOTE + PAGES[name]()
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_schema_is_up_to_date(name: str, repository: Path, update_golden: bool) -> None:
    path = repository / "src" / "cke" / "schemas" / "json" / f"{name}.json"
    text = schema_text(name)
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_committed_schema_has_a_struct(repository: Path) -> None:
    folder = repository / "src" / "cke" / "schemas" / "json"
    assert {path.name.removesuffix(".json") for path in folder.glob("*.json")} == set(FORMATS)


def blocks(page: Path) -> list[dict[str, str]]:
    """The fenced blocks of a page, each with the note that follows it."""
    return [match.groupdict() for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def pages() -> list[str]:
    root = Path(__file__).resolve().parent.parent.parent / "docs"
    found = [*root.joinpath("tutorial").glob("*.md"), *root.joinpath("how-to").glob("*.md")]
    return sorted(str(path.relative_to(root)) for path in found)


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_code_of_a_page_runs(
    page: str,
    repository: Path,
    smollm2_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", str(smollm2_gguf))
    names: dict[str, Any] = {}
    for block in blocks(repository / "docs" / page):
        if block["note"] == "file":
            tmp_path.joinpath(block["value"]).write_text(block["text"])
        elif block["note"] == "not run" or block["kind"] not in RUNNABLE:
            continue
        elif block["kind"] == "python":
            exec(compile(block["text"], page, "exec"), names)
        else:
            for line in block["text"].splitlines():
                run_line(line.replace("$MODEL", str(smollm2_gguf)))


def run_line(line: str) -> None:
    """Run one command line of a page, which is always one of ours."""
    words = shlex.split(line, comments=True)
    assert words[0] == "cke", f"`{line}` is not a command of ours: mark the block as not run"
    assert main(words[1:]) == 0, line
