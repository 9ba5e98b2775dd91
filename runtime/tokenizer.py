"""Text to token IDs and back, from ``tokenizer.json`` or from the metadata of a GGUF file.

Both become a tokenizer of the `tokenizers` library. The split patterns by `tokenizer.ggml.pre` are
those that the models were trained with, as llama.cpp and the models' own tokenizer files state.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from cke.errors import CkeError, Diagnostic, MissingInputError, Note
from cke.runtime.weights.files import ModelFiles, generation_config

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
SPACE = "▁"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
SPLITS = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "smaug-bpe": LLAMA3, "qwen2": QWEN2}
DIGITS = {"smollm", "starcoder", "refact", "command-r"}
PLAIN = {"gpt-2", "default", "gpt2"}


class TextTokenizer:
    """A tokenizer with the model's own policy: what begins a text, what ends one.

    `chat_template` is the model's own template, None when it has none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos: int | None,
        eos: frozenset[int],
        add_bos: bool,
        chat_template: str | None,
    ) -> None:
        self.inner = tokenizer
        self.bos = bos
        self.eos = eos
        self.add_bos = add_bos
        self.chat_template = chat_template

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the IDs of `text`; with `special`, what the model expects around a text."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=special).ids
        if special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            return [self.bos, *ids]
        return ids

    def decode(self, ids: list[int], *, special: bool = False) -> str:
        """Return the text of `ids`; control tokens are shown only with `special`."""
        text: str = self.inner.decode(ids, skip_special_tokens=not special)
        return text

    def text_of(self, token: int) -> str:
        """Return the vocabulary entry of a token, such as `<|im_end|>`."""
        found: str | None = self.inner.id_to_token(token)
        return found or ""

    @property
    def size(self) -> int:
        """The number of entries, added ones included."""
        size: int = self.inner.get_vocab_size()
        return size


class StreamDecoder:
    """Decodes one token at a time; text appears as soon as it is whole characters."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Return the text that `token` completes, which may be empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd") or not text.startswith(self._shown):
            return ""
        fresh = text[len(self._shown) :]
        self._shown = text
        return fresh

    def rest(self) -> str:
        """Return what is left when the stream ends."""
        return self._tokenizer.decode(self._ids)[len(self._shown) :]


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
                notes=(Note("give token IDs with --tokens instead of --prompt", label="help"),),
            )
        )
    try:
        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise CkeError(
            Diagnostic(code="CKE441", file=path.name, message=f"not a tokenizer: {error}")
        ) from None
    settings = _optional(files.path / "tokenizer_config.json")
    bos = _id(inner, settings.get("bos_token"))
    eos = {_id(inner, settings.get("eos_token"))} | _ids(generation_config(files))
    eos |= _ids(files.config)
    return TextTokenizer(
        inner,
        bos=bos,
        eos=frozenset(item for item in eos if item is not None),
        add_bos=bool(settings.get("add_bos_token", False)),
        chat_template=_template(files.path, settings),
    )


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _optional(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text("utf-8"))
    return found if isinstance(found, dict) else {}


def _id(tokenizer: Tokenizer, token: Any) -> int | None:
    if isinstance(token, dict):
        token = token.get("content")
    found: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else None
    return found


def _ids(config: dict[str, Any]) -> set[int | None]:
    found = config.get("eos_token_id")
    return set(found) if isinstance(found, list) else {found}


def _from_gguf(files: ModelFiles) -> TextTokenizer:
    config = files.config
    kind = config.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama") or "tokenizer.ggml.tokens" not in config:
        raise MissingInputError(
            Diagnostic(
                code="CKE440",
                file=files.name,
                path="tokenizer.ggml.model",
                message=f"expected a gpt2 or llama vocabulary, got `{kind}`",
                notes=(Note("give token IDs with --tokens instead of --prompt", label="help"),),
            )
        )
    tokens: list[str] = files.array("tokenizer.ggml.tokens")
    inner = _bpe(files, tokens) if kind == "gpt2" else _sentencepiece(files, tokens)
    _add_special(files, inner, tokens)
    eos = {config.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    return TextTokenizer(
        inner,
        bos=config.get("tokenizer.ggml.bos_token_id"),
        eos=frozenset(item for item in eos if item is not None),
        add_bos=bool(config.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        chat_template=config.get("tokenizer.chat_template"),
    )


def _add_special(files: ModelFiles, inner: Tokenizer, tokens: list[str]) -> None:
    if "tokenizer.ggml.token_type" not in files.config:
        return
    types = files.array("tokenizer.ggml.token_type")
    marked = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    inner.add_tokens(marked)


def _bpe(files: ModelFiles, tokens: list[str]) -> Tokenizer:
    merges = [tuple(item.split(" ", 1)) for item in files.array("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=_ignores_merges(files)))
    inner.pre_tokenizer = _pre_tokenizer(files)
    inner.decoder = decoders.ByteLevel()
    return inner


def _ignores_merges(files: ModelFiles) -> bool:
    return files.config.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")


def _pre_tokenizer(files: ModelFiles) -> Any:
    pre = files.config.get("tokenizer.ggml.pre", "default")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, whole])
    if pre in PLAIN:
        return whole
    if pre not in SPLITS:
        known = sorted([*SPLITS, *DIGITS, *PLAIN])
        raise CkeError(
            Diagnostic(
                code="CKE442",
                file=files.name,
                path="tokenizer.ggml.pre",
                message=f"expected one of {', '.join(known)}, got `{pre}`",
                notes=(Note("give token IDs with --tokens instead of --prompt", label="help"),),
            )
        )
    split = pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, bytes_only])


def _sentencepiece(files: ModelFiles, tokens: list[str]) -> Tokenizer:
    scores: list[float] = files.array("tokenizer.ggml.scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = files.config.get("tokenizer.ggml.unknown_token_id")
    inner = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = files.config.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    finish: list[Any] = [decoders.Strip(content=" ", left=1)] if prefix else []
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *finish]
    )
    return inner


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return every split of a piece into two pieces, best score of the whole first."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
