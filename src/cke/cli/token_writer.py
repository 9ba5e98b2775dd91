"""What `cke run` was asked for, and the tokens on stdout as they come."""

import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cke.api import Model


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for, checked."""

    tokens: list[int]
    prompt: str | None
    new_tokens: int
    stops: tuple[int, ...]


class TokenWriter:
    """Shows tokens as they come: text when there is a tokenizer for it, ids otherwise."""

    def __init__(self, model: "Model", text: bool, shown: bool) -> None:
        from cke.runtime.tokenizer import StreamDecoder

        self._shown = shown
        self._decoder = StreamDecoder(model.tokenizer) if text and shown else None

    def add(self, tokens: list[int]) -> None:
        """Show further tokens."""
        if not self._shown:
            return
        pieces = (
            [self._decoder.add(token) for token in tokens]
            if self._decoder
            else [f"{token} " for token in tokens]
        )
        sys.stdout.write("".join(pieces))
        sys.stdout.flush()

    def end(self) -> None:
        """Show what is left, and end the line."""
        if self._shown:
            sys.stdout.write((self._decoder.rest() if self._decoder else "") + "\n")
            sys.stdout.flush()
