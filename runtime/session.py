"""A session: one batch of sequences over one package, from the first prompt token to the last.

Goal: any segmentation of the same tokens is the same program, and nothing compiles once the
buckets in use are warm. Host bookkeeping is NumPy; everything on the device is a compiled program.
Non-goal: text, files and building; see `cke.api`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cke.runtime.buckets import SEGMENT, query_bucket
from cke.runtime.drivers import CHUNK, Auto, Driver, Looping, advance_once
from cke.runtime.sampling import GREEDY, Sampling, check_sampling
from cke.runtime.state import Capacities, capacities, grow_state, initial_state, state_bytes
from cke.runtime.steps import Watch
from cke.runtime.tokens import (
    Segment,
    check_batch,
    check_context,
    check_new_tokens,
    check_phases,
    token_segment,
)

Tokens = Sequence[Sequence[int]] | np.ndarray | Array


class Session:
    """A batch in progress: `lengths` rows are cached, `positions` come next.

    Sessions of one driver share its weights and compiled programs. `rows` reserves room for that
    many tokens; `context` is the most positions that the model takes, when there is such a limit.
    `uniform` keeps every row of a windowed cache and runs a prompt of any width as one forward, so
    that captures hold all keys in append order. `watch` takes the captures of each step.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        batch: int = 1,
        rows: int = 0,
        context: int | None = None,
        uniform: bool = False,
        watch: Watch | None = None,
    ) -> None:
        package = driver.package
        check_phases(package.phases, ("prefill", "decode"))
        self.batch = check_batch(batch)
        self.context = context
        self.driver = driver
        self._lines = package.circuit_lines()
        self.captured: dict[str, Array] = {}
        self._vocabulary = package.calls.dims["V"]
        self._program = package.program("decode")
        self._segment = 1
        self._uniform = uniform
        self._watch = watch
        self._sizes: Capacities = capacities(self._program, max(rows, 1), 1, uniform=uniform)
        self.reset()

    def reset(self) -> None:
        """Forget every token; the caches keep their capacity."""
        self.lengths = np.zeros(self.batch, np.int64)
        self.positions = np.zeros(self.batch, np.int64)
        self.state = initial_state(self._program, self.batch, self._sizes)
        self.last_logits: Array | None = None

    @property
    def state_bytes(self) -> int:
        """The size of the state in bytes."""
        return state_bytes(self.state)

    def prefill(
        self,
        tokens: Tokens,
        positions: Tokens | None = None,
        logits: Literal["last", "all"] = "last",
    ) -> Array | np.ndarray:
        """Append tokens [B, T] and return logits [B, V] of each row's last one, or all [B, T, V].

        Rows of unequal length are padded on the right; a position of -1 is padding. Positions
        default to those that follow. A row without a token keeps its former last logits.
        """
        segment = token_segment(tokens, positions, self.positions, self._vocabulary)
        check_batch(segment.tokens.shape[0], self.batch)
        check_context(segment.next_positions, self.context)
        width = segment.tokens.shape[1]
        most = width if self._uniform else SEGMENT
        self._reserve(int((self.lengths + segment.lengths).max()), min(width, most))
        parts = [
            self._run(segment.part(start, start + most), logits) for start in range(0, width, most)
        ]
        if logits == "all":
            return np.concatenate([part for part in parts if part is not None], axis=1)
        assert self.last_logits is not None
        return self.last_logits

    def decode(self, token: Sequence[int] | np.ndarray | Array) -> Array:
        """Append one token per row, i32[B], and return its logits [B, V]; -1 leaves a row alone."""
        column = np.asarray(token).reshape(-1, 1)
        following = np.where(column >= 0, self.positions[:, None], -1)
        found = self.prefill(np.where(column >= 0, column, 0), following)
        return jnp.asarray(found)

    def _reserve(self, rows: int, segment: int) -> None:
        """Make room for `rows` rows of each sequence, written up to `segment` at a time."""
        self._segment = max(self._segment, query_bucket(segment))
        needed = capacities(self._program, rows, self._segment, uniform=self._uniform)
        sizes = {window: max(size, self._sizes[window]) for window, size in needed.items()}
        if sizes != self._sizes:
            self.state = grow_state(self.state, self._program, sizes)
            self._sizes = sizes

    def _run(self, segment: Segment, logits: Literal["last", "all"]) -> np.ndarray | None:
        width = segment.tokens.shape[1]
        padded = segment.padded(query_bucket(width))
        size = padded.tokens.shape[1]
        rows = None if logits == "all" or size == 1 else jax.device_put(padded.last_index)
        inputs = {
            "tokens": jax.device_put(padded.tokens),
            "positions": jax.device_put(padded.positions),
        }
        phase = "decode" if size == 1 else "prefill"
        with self._lines:
            outputs, self.state, self.captured = self.driver.run(
                phase, self.state, inputs, rows, self._watch
            )
        self.lengths += segment.lengths
        self.positions = segment.next_positions
        chosen = padded.last_index if rows is None else np.zeros(self.batch, np.int32)
        present = segment.lengths > 0
        if self.last_logits is None or present.all():
            self.last_logits = _last_row(outputs[0], jax.device_put(chosen))
        else:
            self.last_logits = _merge(
                self.last_logits, outputs[0], jax.device_put(chosen), jax.device_put(present)
            )
        return np.asarray(outputs[0])[:, :width] if logits == "all" else None

    def stream(
        self,
        new_tokens: int,
        sampling: Sampling = GREEDY,
        stops: Sequence[int] = (),
        chunk: int = CHUNK,
    ) -> Iterator[np.ndarray]:
        """Yield tokens i32[B, n] that follow what is cached, -1 where a row is done.

        A row is done after one of `stops`, which is given. Of a row's tokens all but the last
        given one are appended to its state.
        """
        check_new_tokens(new_tokens, self.last_logits is not None)
        settings, ending = check_sampling(sampling), tuple(sorted(set(stops)))
        check_context(self.positions + new_tokens - 1, self.context)
        self._reserve(int(self.lengths.max()) + new_tokens, 1)
        seed = jax.device_put(settings.seed_words())
        row = self._first_row(seed, settings, ending)
        self._seed, self._settings, self._stops = seed, settings, ending
        least = self.driver.loops_from
        self._on_device = least is not None and new_tokens >= least and not self._capturing
        left = new_tokens - 1
        yield self._given(row)
        while left > 0 and bool((np.asarray(row["position"]) >= 0).any()):
            count = min(left, chunk, CHUNK)
            row, tokens = self._advance(row, count)
            left -= count
            yield tokens

    def generate(
        self, new_tokens: int, sampling: Sampling = GREEDY, stops: Sequence[int] = ()
    ) -> list[list[int]]:
        """Return each row's next tokens, up to and including a stop."""
        columns = np.concatenate(list(self.stream(new_tokens, sampling, stops)), axis=1)
        return [[int(token) for token in row if token >= 0] for row in columns]

    def _first_row(
        self, seed: Array, sampling: Sampling, stops: tuple[int, ...]
    ) -> dict[str, Array]:
        assert self.last_logits is not None
        row = {
            "token": np.zeros(self.batch, np.int32),
            "position": (self.positions - 1).astype(np.int32),
            "number": np.zeros(self.batch, np.int32),
            "given": np.ones(self.batch, np.bool_),
        }
        advance = advance_once(sampling.form, stops)
        first: dict[str, Array] = advance(self.last_logits, jax.device_put(row), seed)
        return first

    def _given(self, row: Mapping[str, Array]) -> np.ndarray:
        return np.where(np.asarray(row["given"]), np.asarray(row["token"]), -1)[:, None]

    def _advance(self, row: dict[str, Array], count: int) -> tuple[dict[str, Array], np.ndarray]:
        """Feed each row's token and choose the next, `count` times."""
        if self._on_device:
            return self._advance_on_device(row, count)
        columns: list[np.ndarray] = []
        for _ in range(count):
            position = np.asarray(row["position"])
            if not (position >= 0).any():
                break
            token = np.where(position >= 0, np.asarray(row["token"]), -1)
            logits = self.decode(token)
            row = advance_once(self._settings.form, self._stops)(logits, row, self._seed)
            columns.append(self._given(row))
        return row, np.concatenate(columns, axis=1)

    @property
    def _capturing(self) -> bool:
        return any(function.capture for function in self._program.functions)

    def _advance_on_device(
        self, row: dict[str, Array], count: int
    ) -> tuple[dict[str, Array], np.ndarray]:
        assert isinstance(self.driver, Looping)
        loop = self.driver.loop(self._settings, self._stops)
        before = np.asarray(row["number"])
        with self._lines:
            self.state, row, tokens = loop(self.state, row, self._seed, np.int32(count))
        fed = np.asarray(row["number"]) - before
        self.lengths += fed
        self.positions += fed
        self.last_logits = None
        return row, np.asarray(tokens)[:, : max(int(fed.max()), 1)]

    def warm_up(
        self,
        prompt: int,
        new_tokens: int = 0,
        sampling: Sampling = GREEDY,
        stops: Sequence[int] = (),
        logits: Literal["last", "all"] = "last",
    ) -> None:
        """Compile all that a prompt of that length and that many new tokens use, then reset.

        The driver `auto` uses the on-device loop from then on.
        """
        if isinstance(self.driver, Auto):
            self.driver.loops_from = 1
        self.reset()
        self._reserve(prompt + new_tokens, min(prompt, SEGMENT))
        self.reset()
        self.prefill(np.zeros((self.batch, prompt), np.int32), logits=logits)
        if new_tokens:
            self.decode(np.zeros(self.batch, np.int32))
            for _ in self.stream(min(new_tokens, 2), sampling, stops):
                pass
        for array in jax.tree.leaves(self.state):
            array.block_until_ready()
        self.reset()


@jax.jit
def _last_row(logits: Array, index: Array) -> Array:
    """Return [B, V], the row at `index` of each sequence of [B, T, V]."""
    return jnp.take_along_axis(logits, index[:, None, None], axis=1)[:, 0]


@jax.jit
def _merge(former: Array, logits: Array, index: Array, present: Array) -> Array:
    """Return the last rows of the sequences that are present, the former ones of the others."""
    return jnp.where(present[:, None], _last_row(logits, index), former)
