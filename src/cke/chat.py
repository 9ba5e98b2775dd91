"""Chat templates: a model's own Jinja text, rendered in a sandbox as transformers does.

Source of the semantics: the chat template page of transformers (trim_blocks, lstrip_blocks,
`raise_exception`, `strftime_now`, `tojson` without HTML escapes).
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cke.errors import CkeError, Diagnostic, Note


class _RefusedError(TemplateError):
    """The template itself refuses the messages."""


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    tokens: Mapping[str, str],
    add_generation_prompt: bool = True,
) -> str:
    """Return the prompt for `messages`; `tokens` holds bos_token, eos_token and the like.

    Raises CkeError (CKE443) when the model has no template, or the template fails.
    """
    if template is None:
        raise _error("expected a chat template, got none in the model's files")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, **tokens
        )
    except (TemplateError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise _error(f"the chat template fails: {error}") from None


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _error(message: str) -> CkeError:
    return CkeError(
        Diagnostic(
            code="CKE443",
            message=message,
            notes=(Note("run without --chat to give the text as it is", label="help"),),
        )
    )
