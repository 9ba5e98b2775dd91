"""The output conventions of every command: `--format`, `-o`, and the renderings of diagnostics.

A command decides what it says in each format; this module checks the choice and delivers the
text. Files are written whole or not at all; without `-o` the text goes to stdout.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import write_atomically

FORMATS = ("human", "json", "markdown", "github", "junit", "sarif")

Format = Annotated[
    str, Parameter(name="--format", help="human, json, markdown, github, junit or sarif.")
]
Output = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="Write to this file, not to stdout.")
]
Renderers = Mapping[str, Callable[[], str]]


def deliver(format: str, output: Path | None, renderers: Renderers) -> None:
    """Render in the chosen format and write it to the file, or to stdout."""
    text = choose(format, renderers)()
    if not text.endswith("\n"):
        text += "\n"
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    if output.is_dir():
        raise _not_written(output, "it is a folder")
    try:
        write_atomically(output, text.encode())
    except OSError as error:
        raise _not_written(output, error.strerror or str(error)) from None


def _not_written(output: Path, reason: str) -> CkeError:
    note = Note("give `-o` the path of a file that can be written", label="help")
    message = f"the output cannot be written: {reason}"
    return CkeError(Diagnostic(code="CKE905", file=str(output), message=message, notes=(note,)))


def choose(format: str, renderers: Renderers) -> Callable[[], str]:
    """The renderer of a format; call it early to refuse a format before the work starts."""
    if format in renderers:
        return renderers[format]
    names = [*(n for n in FORMATS if n in renderers), *(n for n in renderers if n not in FORMATS)]
    offered = ", ".join(f"`{name}`" for name in names)
    raise CkeError(
        Diagnostic(
            code="CKE906",
            message=f"expected a format of {offered}, got `{format}`",
            notes=(Note("choose one of these with `--format`", label="help"),),
        )
    )


def encode_json(value: Any) -> str:
    """Strict, indented JSON; non-finite numbers are the strings "NaN", "Infinity", "-Infinity"."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return msgspec.json.format(msgspec.json.encode(spell_non_finite(plain)), indent=2).decode()


def spell_non_finite(value: Any) -> Any:
    """Replace every non-finite float of plain data by its name; msgspec would write null."""
    match value:
        case float() if value != value:
            return "NaN"
        case float() if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: spell_non_finite(item) for key, item in value.items()}
        case list() | tuple():
            return [spell_non_finite(item) for item in value]
        case _:
            return value


def progress(message: str) -> None:
    """Say on stderr what is going on."""
    print(message, file=sys.stderr, flush=True)


def render_diagnostics(diagnostics: tuple[Diagnostic, ...], format: str) -> str:
    """The findings of a checking command in any of the formats; none of them is a pass."""
    from cke.cli import findings

    renderers: Renderers = {
        "human": lambda: "\n".join(map(str, diagnostics)),
        "json": lambda: encode_json({"diagnostics": diagnostics}),
        "markdown": lambda: findings.markdown(diagnostics),
        "github": lambda: findings.github(diagnostics),
        "junit": lambda: findings.junit(diagnostics),
        "sarif": lambda: encode_json(findings.sarif(diagnostics)),
    }
    return choose(format, renderers)()
