"""The command `cke`: one lazily imported module per group of verbs.

stdout carries the result, stderr the progress and the errors. A command returns its exit code
(None is 0): 0 pass, 1 a finding, 2 usage or malformed input, 3 input or oracle missing,
4 incomplete or rejected, 70 our bug, 130 interrupted. Non-goal: anything that a Python caller
needs; that is `cke.api`.
"""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from cyclopts import App, Group, Token
from cyclopts.exceptions import CycloptsError, UnknownCommandError, UnknownOptionError

import cke
from cke.cli.crash import CrashGuard
from cke.cli.settings import settings_sources
from cke.cli.verbs import VERBS, Verb
from cke.errors import CkeError, Diagnostic, MissingInputError, Note

EXTRAS = {
    "jax": "jax",
    "jaxlib": "jax",
    "ml_dtypes": "jax",
    "safetensors": "jax",
    "gguf": "jax",
    "tokenizers": "jax",
    "torch": "torch",
    "transformers": "torch",
    "llama_cpp": "llamacpp",
    "pygls": "lsp",
    "lsprotocol": "lsp",
}
"""Optional packages by the extra that brings them."""
COLLECT_AFTER = 50_000
"""New objects between two collections: imports and a syntax tree make many, and little garbage."""


def build_app() -> App:
    """Make the application with every verb registered, and none imported."""
    app = App(
        name="cke",
        help="Compile transformer circuits to JAX, and attribute every divergence.",
        version=cke.__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        config=settings_sources(),
    )
    groups: dict[str, Group] = {}
    for name, verb in VERBS.items():
        group = groups.setdefault(verb.group, Group(verb.group, sort_key=len(groups)))
        _register(app, name, verb, group)
    return app


def _register(app: App, name: str, verb: Verb, group: Group) -> None:
    app.command(verb.target, name=name, help=verb.help, group=group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; every error is one text on stderr."""
    if arguments is None:
        gc.set_threshold(COLLECT_AFTER, 20, 20)
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    guard = CrashGuard(tokens)
    with guard:
        guard.exit_code = _run(tokens)
    return guard.exit_code


def _run(tokens: list[str]) -> int:
    try:
        result = build_app()(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
        return _exit_code(result)
    except CycloptsError as error:
        return _fail(_usage_error(error))
    except CkeError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        return _fail(missing)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


def _exit_code(result: Any) -> int:
    assert result is None or isinstance(result, int), f"a command returned {result!r}"
    return int(result or 0)


def _fail(error: CkeError) -> int:
    sys.stdout.flush()
    print(error, file=sys.stderr)
    return error.exit_code


def _usage_error(error: CycloptsError) -> CkeError:
    """The command line's mistake as a diagnostic; the text is one sentence."""
    match error:
        case UnknownOptionError(token=Token(value=value, keyword=keyword)):
            message = f"unknown flag `{keyword or value}`"
        case UnknownCommandError(unused_tokens=[unknown, *_]):
            message = f"unknown command `{unknown}`"
        case _:
            message = " ".join(str(error).split())
    command = " ".join(["cke", *(error.command_chain or ())])
    note = Note(f"`{command} --help` lists what it takes", label="help")
    return CkeError(Diagnostic(code="CKE901", message=_lower_first(message), notes=(note,)))


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:].removesuffix(".")


def missing_package(error: ModuleNotFoundError) -> CkeError | None:
    """Say how to install the optional package that is missing; None when it is not optional."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return MissingInputError(
        Diagnostic(
            code="CKE904",
            message=f"this command needs the package `{package}`, which is not installed",
            notes=(Note(f"`pip install 'cke[{extra}]'` brings it", label="help"),),
        )
    )
