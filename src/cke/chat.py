"""Chat templates: a model's own Jinja text, rendered in a sandbox as transformers does.

Source of the semantics: the chat template page of transformers (trim_blocks, lstrip_blocks,
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, the `generation` tag, loop
controls).
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cke.errors import CkeError, Diagnostic, Note


class _RefusedError(TemplateError):
    """The template itself refuses the messages."""


class _Generation(Extension):
    """`{% generation %}` marks what the model said; it changes nothing in the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    tokens: Mapping[str, str],
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """Return the prompt for `messages`; `tokens` holds bos_token, eos_token and the like.

    Raises CkeError (CKE443) when the model has no template, or the template fails.
    """
    if template is None:
        raise _error("expected a chat template, got none in the model's files")
    given = {**tokens, "tools": tools, "documents": None, **variables}
    try:
        return (
            _environment()
            .from_string(template)
            .render(messages=list(messages), add_generation_prompt=add_generation_prompt, **given)
        )
    except (
        *(TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError),
        *(MemoryError, RecursionError),
    ) as error:
        raise _error(f"the chat template fails: {error}") from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    return environment


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _error(message: str) -> CkeError:
    return CkeError(
        Diagnostic(
            code="CKE443",
            message=message,
            notes=(Note("run without the chat form to give the text as it is", label="help"),),
        )
    )
