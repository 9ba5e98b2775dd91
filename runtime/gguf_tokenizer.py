"""The vocabulary of a GGUF file as a tokenizer of the `tokenizers` library.

The split patterns by `tokenizer.ggml.pre` are those that the models were trained with, as
llama.cpp and the models' own tokenizer files state. An unknown one is an error, not a guess.
"""

from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.weights.files import ModelFiles, metadata_error
from cke.schemas.reading import shown

PREFIX = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4
SPACE = "▁"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
SPLITS = {
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "stablelm2": QWEN2,
}
DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
PLAIN = frozenset({"gpt-2", "gpt2", "default", "olmo", "phi-2"})
COMPOSED = frozenset({"qwen2"})
"""Vocabularies of models that read text in the normal form NFC."""
WHOLE_WORDS = frozenset({"llama-bpe", "llama3"})
"""Vocabularies whose entries are taken whole, whatever the merges would make."""


def inner_tokenizer(files: ModelFiles, kind: str) -> Tokenizer:
    """Return the tokenizer of a `gpt2` or `llama` vocabulary, special tokens included."""
    tokens = texts(files, "tokens")
    inner = _byte_pairs(files, tokens) if kind == "gpt2" else _pieces(files, tokens)
    inner.add_tokens(list(_special(files, tokens)))
    return inner


def eos_tokens(files: ModelFiles) -> frozenset[int]:
    """Return the tokens that end a text or a turn."""
    found = {token_id(files, f"{name}_token_id") for name in ("eos", "eot", "eom")}
    return frozenset(item for item in found if item is not None)


def token_id(files: ModelFiles, name: str) -> int | None:
    """Return a token ID of the metadata, None when absent; one out of range is CKE421."""
    found = number(files, name)
    size = int(files.config.get(f"{files.config['general.architecture']}.vocab_size", 0))
    if found is not None and not 0 <= found < size:
        raise metadata_error(
            files.name, PREFIX + name, f"expected a token of 0 to {size - 1}, got {found}"
        )
    return found


def number(files: ModelFiles, name: str) -> int | None:
    """Return a whole number of the metadata, None when absent."""
    found = files.config.get(PREFIX + name)
    if found is not None and type(found) is not int:
        got = f"a {type(found).__name__}"
        raise metadata_error(files.name, PREFIX + name, f"expected a whole number, got {got}")
    return found


def texts(files: ModelFiles, name: str) -> list[str]:
    """Return an array of strings of the metadata."""
    return _items(files, name, str, "strings")


def _items(files: ModelFiles, name: str, kind: type, what: str) -> list[Any]:
    found = files.array(PREFIX + name)
    if not all(type(item) is kind for item in found):
        raise metadata_error(files.name, PREFIX + name, f"expected {what}, got other items")
    return found


def _beside_tokens(
    files: ModelFiles, name: str, kind: type, what: str, tokens: list[str]
) -> list[Any]:
    found = _items(files, name, kind, what)
    if len(found) != len(tokens):
        raise metadata_error(
            files.name, PREFIX + name, f"expected one for each of {len(tokens)} tokens, got "
            f"{len(found)}",
        )  # fmt: skip
    return found


def _special(files: ModelFiles, tokens: list[str]) -> Iterator[AddedToken]:
    if PREFIX + "token_type" not in files.config:
        return
    types = _beside_tokens(files, "token_type", int, "whole numbers", tokens)
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            yield AddedToken(token, normalized=False, special=kind == CONTROL)


def _byte_pairs(files: ModelFiles, tokens: list[str]) -> Tokenizer:
    pre = files.config.get(PREFIX + "pre", "default")
    halves = [item.partition(" ") for item in texts(files, "merges")]
    if not all(left and right for left, _, right in halves):
        raise metadata_error(
            files.name, PREFIX + "merges", "expected two pieces around a space in every merge"
        )
    merges = [(left, right) for left, _, right in halves]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE_WORDS))
    inner.pre_tokenizer = _pre_tokenizer(files, pre)
    if pre in COMPOSED:
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    return inner


def _pre_tokenizer(files: ModelFiles, pre: Any) -> Any:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in PLAIN:
        return whole
    if pre in DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    if pre not in SPLITS:
        known = sorted([*SPLITS, *DIGITS, *PLAIN])
        raise CkeError(
            Diagnostic(
                code="CKE442",
                file=files.name,
                path=PREFIX + "pre",
                message=f"expected one of {', '.join(known)}, got `{shown(str(pre))}`",
                notes=(
                    Note("give token IDs with `--tokens` in place of `--prompt`", label="help"),
                ),
            )
        )
    split = pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, bytes_only])


def _pieces(files: ModelFiles, tokens: list[str]) -> Tokenizer:
    scores = _beside_tokens(files, "scores", float, "floats", tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = token_id(files, "unknown_token_id")
    inner = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = files.config.get(PREFIX + "add_space_prefix", True) is True
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
