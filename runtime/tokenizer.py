"""Text to token IDs and back, with the model's own policy.

``tokenizer.json`` is read by the `tokenizers` library; a GGUF vocabulary becomes a tokenizer of
the same library (`gguf_tokenizer`). Non-goal: chat templates are rendered by `cke.chat`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.gguf_tokenizer import eos_tokens, inner_tokenizer, token_id
from cke.runtime.weights.files import ModelFiles, generation_config, read_object
from cke.schemas.reading import read_bytes, shown

WITHOUT = Note("give token IDs with `--tokens` in place of `--prompt`", label="help")
REPLACEMENT = "\ufffd"


class TextTokenizer:
    """A tokenizer with the model's own policy: what begins a text, what ends one.

    `chat_template` is the model's own template, None when it has none. Special tokens are
    recognised in text, as transformers does.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos: int | None,
        eos: frozenset[int],
        add_bos: bool,
        add_eos: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.inner = tokenizer
        self.bos = bos
        self.eos = eos
        self.add_bos = add_bos
        self.add_eos = add_eos
        self.chat_template = chat_template

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the IDs of `text`; with `special`, what the model expects around a text."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=special).ids
        if special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]
        if special and self.add_eos is not None and ids[-1:] != [self.add_eos]:
            ids = [*ids, self.add_eos]
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`; control tokens are shown only with `special`."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=not special)
        return text

    def text_of(self, token: int) -> str:
        """Return the vocabulary entry of a token, such as `<|im_end|>`; empty when unknown."""
        found: str | None = self.inner.id_to_token(token)
        return found or ""

    @property
    def size(self) -> int:
        """The number of entries, added ones included."""
        size: int = self.inner.get_vocab_size()
        return size


class StreamDecoder:
    """Decodes one token at a time; text appears as soon as it is whole characters.

    The work per token does not grow: only the tokens since the last text but one are decoded.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0

    def add(self, token: int) -> str:
        """Return the text that `token` completes, which may be empty."""
        self._ids.append(token)
        fresh = self._fresh()
        if not fresh or fresh.endswith(REPLACEMENT):
            return ""
        self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return fresh

    def rest(self) -> str:
        """Return what is left when the stream ends: a broken character, or nothing."""
        return self._fresh()

    def _fresh(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._shown])
        return self._tokenizer.decode(self._ids)[len(before) :]


def load_tokenizer(files: ModelFiles) -> TextTokenizer:
    """Return the model's tokenizer; raises MissingInputError when it ships none."""
    return _from_gguf(files) if files.format == "gguf" else _from_folder(files)


def _from_folder(files: ModelFiles) -> TextTokenizer:
    path = files.path / "tokenizer.json"
    if not path.is_file():
        raise MissingInputError(
            Diagnostic(
                code="CKE440",
                file=files.name,
                message="expected `tokenizer.json`, got none",
                notes=(WITHOUT,),
            )
        )
    inner = _made(path.name, lambda: Tokenizer.from_file(str(path)))
    settings = read_object(files, "tokenizer_config.json")
    eos = {_id(inner, settings.get("eos_token")), *_ids(generation_config(files))}
    eos.update(_ids(files.config))
    return TextTokenizer(
        inner,
        bos=_id(inner, settings.get("bos_token")),
        eos=frozenset(item for item in eos if item is not None),
        add_bos=settings.get("add_bos_token") is True,
        chat_template=_template(files.path, settings),
    )


def _made(name: str, make: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer that `make` gives; what the library refuses is CKE441."""
    try:
        return make()
    except Exception as error:
        if type(error) not in (Exception, ValueError, TypeError, KeyError, OverflowError):
            raise  # the library raises the bare class, and nothing else is expected
        raise CkeError(
            Diagnostic(
                code="CKE441",
                file=name,
                message=f"expected a tokenizer: {shown(str(error), 200)}",
                notes=(WITHOUT,),
            )
        ) from None


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_bytes(file).decode("utf-8", "replace")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = [item for item in found if isinstance(item, dict) and item.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def _id(tokenizer: Tokenizer, token: Any) -> int | None:
    if isinstance(token, dict):
        token = token.get("content")
    found: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else None
    return found


def _ids(config: dict[str, Any]) -> list[int]:
    found = config.get("eos_token_id")
    listed = found if isinstance(found, list) else [found]
    return [item for item in listed if type(item) is int]


def _from_gguf(files: ModelFiles) -> TextTokenizer:
    config = files.config
    kind = config.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama") or "tokenizer.ggml.tokens" not in config:
        raise MissingInputError(
            Diagnostic(
                code="CKE440",
                file=files.name,
                path="tokenizer.ggml.model",
                message=f"expected a `gpt2` or `llama` vocabulary, got {_quoted(kind)}",
                notes=(WITHOUT,),
            )
        )
    inner = _made(files.name, lambda: inner_tokenizer(files, kind))
    template = config.get("tokenizer.chat_template")
    usual = kind == "llama" or config.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
    ends = token_id(files, "eos_token_id") if config.get("tokenizer.ggml.add_eos_token") else None
    return TextTokenizer(
        inner,
        bos=token_id(files, "bos_token_id"),
        eos=eos_tokens(files),
        add_bos=config.get("tokenizer.ggml.add_bos_token", usual) is True,
        add_eos=ends,
        chat_template=template if isinstance(template, str) else None,
    )


def _quoted(kind: Any) -> str:
    return "none" if kind is None else f"`{shown(str(kind))}`"
