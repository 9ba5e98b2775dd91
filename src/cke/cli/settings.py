"""Settings of every command: flag, then `CKE_*`, then `cke.toml` or `[tool.cke]`, then default.

`CKE_RUN_DTYPE=bfloat16` sets `--dtype` of `cke run`; in a file it is `dtype` in the table `[run]`.
The nearest `cke.toml` and `pyproject.toml` at or above the working folder are read. An unknown
verb or key in a file is an error.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict, Env
from cyclopts.exceptions import UnknownOptionError

from cke.cli.verbs import VERBS
from cke.errors import CkeError, Diagnostic, Note

Source = Callable[[App, tuple[str, ...], ArgumentCollection], None]


def settings_sources() -> list[Source]:
    """The sources of settings below the flags, strongest first."""
    return [Env("CKE_"), SettingsFile("cke.toml"), SettingsFile("pyproject.toml", ("tool", "cke"))]


class SettingsFile:
    """The nearest file of a name, read when a command's arguments are bound."""

    def __init__(self, name: str, keys: tuple[str, ...] = ()) -> None:
        self.name = name
        self.keys = keys

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Add what the file says about the command to its arguments."""
        path = find_upwards(self.name)
        if path is None:
            return
        table = read_settings(path, self.keys)
        try:
            Dict(table, source=str(path))(app, commands, arguments)
        except UnknownOptionError as error:
            raise CkeError(_unknown_flag(path, self.keys, commands, error)) from None


def find_upwards(name: str) -> Path | None:
    """The file of that name in the working folder, or in the nearest folder above it."""
    folder = Path.cwd()
    return next((p / name for p in (folder, *folder.parents) if (p / name).is_file()), None)


def read_settings(path: Path, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the table under `keys`; its own keys are verbs, each with a table of flags."""
    import tomllib

    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise CkeError(_unreadable(path, error)) from None
    for key in keys:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    where = "$" + "".join(f".{key}" for key in keys)
    if not isinstance(table, dict):
        raise CkeError(_not_a_table(path, where, table))
    problems = [problem for key in table for problem in _check_verb(path, where, key, table[key])]
    if problems:
        raise CkeError(problems)
    return table


def _near(word: str, known: Iterable[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, list(known), n=1)


def _check_verb(path: Path, where: str, key: str, value: object) -> list[Diagnostic]:
    if key not in VERBS:
        close = _near(key, VERBS)
        hint = f"did you mean `[{close[0]}]`?" if close else "`cke --help` lists the commands"
        return [
            Diagnostic(
                code="CKE902",
                file=str(path),
                path=f"{where}.{key}",
                message=f"expected a command, got `{key}`",
                notes=(Note(hint, label="help"),),
            )
        ]
    return [] if isinstance(value, dict) else [_not_a_table(path, f"{where}.{key}", value)]


def _unknown_flag(
    path: Path, keys: tuple[str, ...], commands: tuple[str, ...], error: UnknownOptionError
) -> Diagnostic:
    name = (error.token.keyword or "").strip("-[]").rpartition("][")[2]
    flags = [flag.lstrip("-") for item in error.argument_collection for flag in item.names]
    close = _near(name, flags)
    command = " ".join(["cke", *commands])
    hint = f"did you mean `{close[0]}`?" if close else f"`{command} --help` lists the flags"
    return Diagnostic(
        code="CKE902",
        file=str(path),
        path=".".join(["$", *keys, *commands, name]),
        message=f"expected a flag of `{command}`, got `{name}`",
        notes=(Note(hint, label="help"),),
    )


def _not_a_table(path: Path, where: str, value: object) -> Diagnostic:
    return Diagnostic(
        code="CKE902",
        file=str(path),
        path=where,
        message=f"expected a table of flags, got {type(value).__name__}",
        notes=(Note('settings look like `[run]` followed by `dtype = "bfloat16"`', label="help"),),
    )


def _unreadable(path: Path, error: Exception) -> Diagnostic:
    return Diagnostic(
        code="CKE903",
        file=str(path),
        message=f"this settings file is not readable TOML: {' '.join(str(error).split())}",
        notes=(Note("mend the file, or run the command from another folder", label="help"),),
    )
