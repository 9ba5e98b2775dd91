"""Every diagnostic code has a page and an example that fails with it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cke.cli import main
from cke.errors.catalogue import Code, catalogue

COMMANDS = {
    code: page.example
    for code, page in catalogue().items()
    if isinstance(page.example, dict) and "command" in page.example
}


@pytest.mark.parametrize("code", sorted(COMMANDS))
def test_example_command_fails_with_its_code(
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example: dict[str, Any] = COMMANDS[code]
    for name, text in example.get("files", {}).items():
        tmp_path.joinpath(name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(example["command"]) in (1, 2, 3, 4)
    assert f"error[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_code_is_well_formed(code: str) -> None:
    page = catalogue()[code]
    assert re.fullmatch(r"CKE[1-9]\d\d", code)
    assert page.title
    assert page.title[0] == page.title[0].lower() or page.title.split()[0].isupper()
    assert page.explanation.strip().endswith((".", "`"))
    assert page.fix.strip()


@pytest.mark.parametrize("code", sorted(set(catalogue()) - set(COMMANDS)))
def test_example_of_a_code_is_shown_by_a_test(code: str, repository: Path) -> None:
    assert example_problem(catalogue()[code], code, repository) is None


def example_problem(page: Code, code: str, repository: Path) -> str | None:
    """Why the example of a code proves nothing; None when it does.

    A file under tests/ must have its expected text beside it, or stand in a test; a test must exist
    and name the code, itself or in the error text that it pins.
    """
    match page.example:
        case {"test": str(target), **rest} if not rest:
            path, _, name = target.partition("::")
            file = repository / path
            text = file.read_text(encoding="utf-8") if file.is_file() else ""
            found = re.search(rf"def {re.escape(name.split('[')[0])}\b", text)
            return None if found and code in text else f"{target} does not show {code}"
        case str(text) if "\n" not in text and repository.joinpath(text).is_file():
            expected = repository.joinpath(text).with_suffix(".stderr")
            shown = expected.is_file() and f"error[{code}]" in expected.read_text(encoding="utf-8")
            return None if shown else f"{text} has no .stderr that shows {code}"
        case str(text) if "\n" in text:
            tests = sorted(repository.joinpath("tests").rglob("*.py"))
            named = any(code in test.read_text(encoding="utf-8") for test in tests)
            return None if named else f"no test names {code}"
        case _:
            return f"the example of {code} is of no known form: {page.example!r}"


def test_every_code_that_the_sources_raise_is_in_the_catalogue(repository: Path) -> None:
    raised: dict[str, Path] = {}
    for path in repository.joinpath("src/cke").rglob("*.py"):
        raised |= dict.fromkeys(_codes_in(path), path)
    for folder in ("dsl", "codegen", "kernel_registry", "runtime", "oracles", "xray"):
        for path in repository.joinpath(folder).rglob("*.py"):
            raised |= dict.fromkeys(_codes_in(path), path)
    missing = {code: str(path) for code, path in raised.items() if code not in catalogue()}
    assert missing == {}


def _codes_in(path: Path) -> list[str]:
    return re.findall(r'"(CKE\d{3})"', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", ["dsl", "circuits", "codegen", "kernel_registry", "runtime"])
def test_import_of_a_part_from_the_root_says_what_to_write(part: str, repository: Path) -> None:
    assert importlib.util.find_spec("cke")
    done = subprocess.run(
        [sys.executable, "-c", f"import {part}"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"write `import cke.{part}`" in done.stderr
