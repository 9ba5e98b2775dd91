"""The command line's conventions: exit codes, streams, settings, crashes, start-up."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import cke
from cke import cli
from cke.cli import main
from cke.cli.verbs import VERBS, Verb
from cke.errors import Diagnostic, RejectedError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A further verb `try`, whose function is `verb["run"]`."""
    module = ModuleType("tests_verb")
    monkeypatch.setitem(sys.modules, "tests_verb", module)
    monkeypatch.setitem(VERBS, "try", Verb("Tests", "tests_verb:run", "Do what the test says."))
    return vars(module)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == cke.__version__


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"│ {name} " in text for name in VERBS)


def test_help_imports_no_verb_and_no_heavy_package() -> None:
    program = (
        "import sys; from cke.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m in "
        "('jax', 'numpy', 'lark', 'jinja2', 'torch', 'cke.cli.doctor', 'cke.cli.schema')], "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_has_a_help_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: cke {name}")


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bogus"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error[CKE901]: unknown command `bogus`\n  help: `cke --help` lists what it takes\n"
    )


def test_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bogus"]) == 2
    assert capsys.readouterr().err == (
        "error[CKE901]: unknown flag `--bogus`\n  help: `cke doctor --help` lists what it takes\n"
    )


def test_format_that_a_command_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "sarif"]) == 2
    assert capsys.readouterr().err == (
        "error[CKE906]: expected a format of `human`, `json`, got `sarif`\n"
        "  help: choose one of these with `--format`\n"
    )


def test_output_to_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "-o", "."]) == 2
    assert capsys.readouterr().err == (
        ".: error[CKE905]: the output cannot be written: it is a folder\n"
        "  help: give `-o` the path of a file that can be written\n"
    )


def test_error_of_a_stage_decides_the_exit_code(
    verb: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise RejectedError(Diagnostic(code="CKE801", message="not neutral"))

    verb["run"] = run
    assert main(["try"]) == 4
    assert capsys.readouterr().err == "error[CKE801]: not neutral\n"


def test_number_that_a_command_returns_is_the_exit_code(verb: dict[str, object]) -> None:
    verb["run"] = lambda: 1
    assert main(["try"]) == 1


def test_interrupt_exits_with_130(
    verb: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise KeyboardInterrupt

    verb["run"] = run
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bug_of_ours_leaves_a_crash_file(
    verb: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def run() -> None:
        error = AssertionError("edge `h` has no producer")
        error.add_note("the IR text")
        raise error

    verb["run"] = run
    monkeypatch.setenv("CKE_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["try"]) == 70
    [file] = (tmp_path / "cache" / "crashes").iterdir()
    line = capsys.readouterr().err
    assert line == (
        f"internal error: AssertionError: edge `h` has no producer; details are in {file}\n"
    )
    text = file.read_text()
    assert "command: cke try" in text
    assert "the IR text" in text


def test_missing_optional_package_names_its_extra(
    verb: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")

    verb["run"] = run
    assert main(["try"]) == 3
    assert capsys.readouterr().err == (
        "error[CKE904]: this command needs the package `llama_cpp`, which is not installed\n"
        "  help: `pip install 'cke[llamacpp]'` brings it\n"
    )


def test_missing_package_of_ours_is_a_bug(verb: dict[str, object]) -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'cke.nothing'", name="cke.nothing")

    verb["run"] = run
    assert main(["try"]) == 70


def _echo(verb: dict[str, object]) -> None:
    def run(dtype: str = "float32") -> None:
        print(dtype)

    verb["run"] = run


def test_flag_beats_variable_beats_file_beats_default(
    verb: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    _echo(verb)

    def said(*arguments: str) -> str:
        assert main(["try", *arguments]) == 0
        return capsys.readouterr().out.strip()

    assert said() == "float32"
    tmp_path.joinpath("pyproject.toml").write_text("[tool.cke.try]\ndtype = 'project'\n")
    assert said() == "project"
    tmp_path.joinpath("cke.toml").write_text("[try]\ndtype = 'file'\n")
    assert said() == "file"
    monkeypatch.setenv("CKE_TRY_DTYPE", "variable")
    assert said() == "variable"
    assert said("--dtype", "flag") == "flag"


def test_settings_are_found_in_a_folder_above(
    verb: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    _echo(verb)
    tmp_path.joinpath("cke.toml").write_text("[try]\ndtype = 'above'\n")
    tmp_path.joinpath("inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert main(["try"]) == 0
    assert capsys.readouterr().out == "above\n"


def test_unknown_verb_in_a_settings_file_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cke.toml"
    file.write_text("[docter]\nformat = 'json'\n")
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == (
        f"{file}: `$.docter`: error[CKE902]: expected a command, got `docter`\n"
        "  help: did you mean `[doctor]`?\n"
    )


def test_unknown_flag_in_a_settings_file_is_an_error(
    verb: dict[str, object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _echo(verb)
    file = tmp_path / "cke.toml"
    file.write_text("[try]\ndtpye = 'f32'\n")
    assert main(["try"]) == 2
    assert capsys.readouterr().err == (
        f"{file}: `$.try.dtpye`: error[CKE902]: expected a flag of `cke try`, got `dtpye`\n"
        "  help: did you mean `dtype`?\n"
    )


def test_settings_file_that_is_not_toml_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cke.toml"
    file.write_text("[doctor\n")
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err.startswith(f"{file}: error[CKE903]: this settings file is not")


def test_doctor_says_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cke"] == cke.__version__
    packages = {row["name"]: row["version"] for row in found["packages"]}
    assert packages["jax"]


def test_extras_exist_in_pyproject(repository: Path) -> None:
    import tomllib

    project = tomllib.loads(repository.joinpath("pyproject.toml").read_text())["project"]
    assert set(cli.EXTRAS.values()) <= set(project["optional-dependencies"])
