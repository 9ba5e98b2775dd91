"""Token input: checked, padded and cut on the host, before anything reaches the device."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from cke.errors import CkeError, Diagnostic, Note

PADDING = -1


class Segment(msgspec.Struct, frozen=True):
    """Tokens i32[B, T] at positions i32[B, T], -1 for padding; what each row counts afterwards."""

    tokens: np.ndarray
    positions: np.ndarray
    former: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each row: int64[B]."""
        return np.asarray((self.positions >= 0).sum(axis=1))

    @property
    def next_positions(self) -> np.ndarray:
        """The position after each row's last token; the former one of a row without a token."""
        following = self.positions.max(axis=1, initial=PADDING) + 1
        return np.asarray(np.maximum(self.former, following))

    @property
    def last_index(self) -> np.ndarray:
        """The column of each row's last token, 0 of a row without one: i32[B]."""
        columns = np.arange(self.positions.shape[1], dtype=np.int32)
        valid = np.where(self.positions >= 0, columns, 0)
        return np.asarray(valid.max(axis=1), np.int32)

    def part(self, start: int, stop: int) -> "Segment":
        """Return the columns from `start` to `stop`."""
        before = self.positions[:, :start].max(axis=1, initial=PADDING) + 1
        return Segment(
            self.tokens[:, start:stop],
            self.positions[:, start:stop],
            np.maximum(self.former, before),
        )

    def padded(self, width: int) -> "Segment":
        """Return the segment with padding on the right, `width` columns in all."""
        pad = ((0, 0), (0, width - self.tokens.shape[1]))
        return Segment(
            np.ascontiguousarray(np.pad(self.tokens, pad)),
            np.ascontiguousarray(np.pad(self.positions, pad, constant_values=PADDING)),
            self.former,
        )


def token_segment(tokens: Any, positions: Any, former: np.ndarray, vocabulary: int) -> Segment:
    """Return checked tokens; positions that are not given follow `former`, the next of each row."""
    ids, present = _rectangle(tokens)
    if positions is None:
        steps = np.arange(ids.shape[1], dtype=np.int64)
        first = former[:, None] if len(former) == len(ids) else np.zeros((1, 1), np.int64)
        places = np.where(present, first + steps, PADDING)
    else:
        places = _checked_positions(positions, ids, present, former)
    if not (places >= 0).any():
        raise _error("CKE602", "expected at least one token, got an empty prompt", GIVE_TOKENS)
    _check_range(ids, places >= 0, vocabulary)
    clean = np.where(places >= 0, ids, 0).astype(np.int32)
    before = former if len(former) == len(ids) else np.zeros(len(ids), np.int64)
    return Segment(clean, places.astype(np.int32), before)


GIVE_TOKENS = "give token ids such as `1 2 3`, or a text that the tokenizer turns into some"


def _error(code: str, message: str, help_text: str) -> CkeError:
    return CkeError(Diagnostic(code=code, message=message, notes=(Note(help_text, label="help"),)))


def _rectangle(tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ids int64[B, T], unequal rows padded on the right, and where there is an id."""
    if isinstance(tokens, (list, tuple)) and all(_is_row(row) for row in tokens):
        rows = [_integers(np.asarray(row)) for row in tokens]
        if any(row.ndim != 1 for row in rows):
            raise _error("CKE605", "`tokens` expects integers[B, T], got more axes", BATCHES)
        width = max((len(row) for row in rows), default=0)
        ids = np.zeros((len(rows), width), np.int64)
        present = np.zeros((len(rows), width), np.bool_)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            present[index, : len(row)] = True
        return ids, present
    ids = _integers(np.asarray(tokens))
    if ids.ndim != 2:
        axes = "axis" if ids.ndim == 1 else "axes"
        raise _error("CKE605", f"`tokens` expects integers[B, T], got {ids.ndim} {axes}", BATCHES)
    return ids.astype(np.int64), np.ones(ids.shape, np.bool_)


BATCHES = "one prompt is a batch of one: `[[1, 2, 3]]`"


def _is_row(row: Any) -> bool:
    return isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) > 0


def _integers(array: np.ndarray) -> np.ndarray:
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise _error("CKE605", f"`tokens` expects integers[B, T], got {array.dtype}", BATCHES)
    return array.astype(np.int64)


def _checked_positions(
    positions: Any, ids: np.ndarray, present: np.ndarray, former: np.ndarray
) -> np.ndarray:
    places, given = _rectangle(positions)
    places = np.where(given, places, PADDING)
    if places.shape != ids.shape:
        got, expected = list(places.shape), list(ids.shape)
        raise _error(
            "CKE604",
            f"`positions` expects the shape of the tokens {expected}, got {got}",
            "give one position per token, -1 for padding",
        )
    places = np.where(present, places, PADDING)
    for row, (line, start) in enumerate(zip(places, former, strict=False)):
        valid = line[line >= 0]
        if len(valid) and (valid[0] < start or (np.diff(valid) <= 0).any()):
            raise _error(
                "CKE604",
                f"`positions` of row {row} expects rising positions from {start} on, "
                f"got {_shown(valid)}",
                "positions rise within a row and over its segments; gaps are allowed",
            )
    return places


def _shown(values: np.ndarray, most: int = 8) -> str:
    shown = ", ".join(str(value) for value in values[:most])
    return f"{shown}, …" if len(values) > most else shown


def _check_range(ids: np.ndarray, present: np.ndarray, vocabulary: int) -> None:
    wrong = np.argwhere(present & ((ids < 0) | (ids >= vocabulary)))
    if len(wrong):
        row, column = wrong[0]
        raise _error(
            "CKE601",
            f"expected token ids from 0 to {vocabulary - 1}, got {ids[row, column]} "
            f"at row {row}, column {column}",
            "check that the tokenizer belongs to this model",
        )


def check_batch(batch: int, expected: int | None = None) -> int:
    """Return the batch size, or raise when it is not at least 1, or not that of the session."""
    if batch < 1:
        raise _error("CKE613", f"`batch` expects at least 1, got {batch}", BATCHES)
    if expected is not None and batch != expected:
        raise _error(
            "CKE613",
            f"expected {expected} rows as the session has, got {batch}",
            "open a session with that `batch`, or pad with rows at position -1",
        )
    return batch


def check_context(following: np.ndarray, context: int | None) -> None:
    """Raise when the next positions lie beyond the context."""
    if context is not None and following.max() > context:
        raise _error(
            "CKE603",
            f"expected at most {context} positions, got {following.max()}",
            "shorten the prompt, or ask for fewer new tokens",
        )


def check_new_tokens(count: int, started: bool) -> None:
    """Raise when the count is not at least 1, or when no prompt was given."""
    if count < 1:
        raise _error(
            "CKE610", f"`new_tokens` expects at least 1, got {count}", "ask for at least one token"
        )
    if not started:
        raise _error(
            "CKE602", "expected a prompt before new tokens, got none", "call `prefill` first"
        )


def check_phases(phases: Sequence[str], needed: Sequence[str]) -> None:
    """Raise when a package lacks a phase."""
    missing = [phase for phase in needed if phase not in phases]
    if missing:
        raise _error(
            "CKE614",
            f"expected a package with the phases {' and '.join(needed)}, got {', '.join(phases)}",
            "a circuit without state encodes: it has no tokens to generate",
        )


def token_rows(tokens: Any) -> int:
    """Return the number of rows of a batch of tokens."""
    return len(_rectangle(tokens)[0])
