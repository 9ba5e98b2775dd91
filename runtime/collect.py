"""Captured device arrays become records: canonical rows, digests, and summaries of a program.

What a step returned is treated when it is there and let go before the next one, so that memory
holds one group of layers. A group is one layer; in a decode step, whose captures are small, it is
every layer up to GROUP bytes.
"""

import math
from typing import Protocol

import jax
import msgspec
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.runtime.buckets import query_bucket
from cke.runtime.capture_groups import Group, Groups
from cke.runtime.edges import Edges
from cke.runtime.host_summaries import host_summaries
from cke.runtime.loaded_kernels import Contracts
from cke.runtime.records import digest
from cke.runtime.schedule import CaptureRequest, program_phase
from cke.runtime.summaries import Axes, places, summary_of, summary_program
from cke.runtime.trace_writer import Mark
from cke.runtime.validity import canonical_shape, valid_mask
from cke.schemas.trace import Record, Segment, Summary

Host = NDArray[np.generic]
Shape = tuple[int, ...]

GROUP = 32 << 20
"""Bytes of captures that a decode step holds before they are summarised."""


class Sink(Protocol):
    """Takes captures one at a time."""

    def add(self, record: Record, array: Host) -> None:
        """Keep one capture with its values."""
        ...

    def note(self, record: Record) -> None:
        """Keep one record without values."""
        ...

    def mark(self) -> Mark:
        """Return a place to rewind to."""
        ...

    def rewind(self, mark: Mark) -> None:
        """Drop every capture that came after the mark."""
        ...

    def reject(self) -> None:
        """Set every capture aside, labelled: they are not evidence."""
        ...


class Taken(msgspec.Struct, frozen=True):
    """The arrays of a group, one for each of its items."""

    group: Group
    arrays: list[Array]

    def distinct(self) -> dict[str, Array]:
        """Return the arrays that have values of their own, by key without the layer."""
        names = zip(self.group.axes, self.group.distinct, strict=True)
        return {name: self.arrays[index] for (name, _), index in names}


class Collector:
    """Takes the captures of one forward, step by step, and gives records to the sink."""

    def __init__(
        self, edges: Edges, request: CaptureRequest, sink: Sink, contracts: Contracts
    ) -> None:
        self.request = request
        self.sink = sink
        self._groups = Groups(edges, request, contracts)
        self._pending: list[Taken] = []
        self._bytes = 0

    def begin(self, segment: Segment) -> None:
        """Start a forward."""
        self.segment = segment
        width = len(segment.tokens[0])
        self.phase = program_phase(segment)
        where = places(segment, width if self.phase == "encode" else query_bucket(width))
        self._padded = bool((where["positions"] < 0).any())
        self._where = jax.device_put(where)
        self._limit = GROUP if self.phase == "decode" and self.request.level == "summary" else 0
        self._sizes: dict[Axes, int] = {}
        self._counted: dict[tuple[tuple[str, ...], Shape], tuple[Shape, int]] = {}

    def watch(self, captured: dict[str, Array]) -> None:
        """Take the captures of one step, or of all of them in the order of execution."""
        groups = self._groups.of(self.phase, self.segment.phase, captured)
        for group in groups:
            if self._pending and self._pending[0].group.axes != group.axes:
                self._flush()
            taken = Taken(group, [captured.pop(item.key) for item in group.items])
            self._pending.append(taken)
            self._bytes += self._size(taken)
            if self._bytes >= self._limit:
                self._flush()
        captured.clear()

    def finish(self) -> None:
        """End the forward: nothing is left to treat."""
        self._flush()

    def _size(self, taken: Taken) -> int:
        """Return the bytes of a group; layers of one kind have equal ones in a forward."""
        axes = taken.group.axes
        if axes not in self._sizes:
            self._sizes[axes] = sum(array.nbytes for array in taken.arrays)
        return self._sizes[axes]

    def _flush(self) -> None:
        pending, self._pending, self._bytes = self._pending, [], 0
        if not pending:
            return
        axes = pending[0].group.axes
        rows = self._numbers([taken.distinct() for taken in pending], axes)
        for taken, numbers in zip(pending, rows, strict=True):
            self._emit(taken, numbers)

    def _numbers(self, arrays: list[dict[str, Array]], axes: Axes) -> list[list[list[float]]]:
        """Return the numbers of each edge of each layer, where the arrays are."""
        if jax.default_backend() == "cpu":
            return host_summaries(arrays, axes, self.segment)
        found = summary_program(tuple(arrays), self._where, axes=axes, padded=self._padded)
        rows: list[list[list[float]]] = np.asarray(found).tolist()
        return rows

    def _emit(self, taken: Taken, numbers: list[list[float]]) -> None:
        """Give the records of a group to the sink, those of equal values with one summary."""
        group = taken.group
        made: dict[int, tuple[Shape, Summary, Host | None, str | None]] = {}
        for index, row in zip(group.distinct, numbers, strict=True):
            item, array = group.items[index], taken.arrays[index]
            shape, elements = self._shape(item.axes, array.shape)
            host, sha256 = self._host(array, item.axes)
            made[index] = shape, summary_of(row, elements), host, sha256
        for item in group.items:
            shape, summary, host, sha256 = made[item.like]
            record = msgspec.structs.replace(
                item.record,
                segment=self.segment.index,
                shape=shape,
                summary=summary,
                sha256=sha256,
            )
            if self.request.level == "summary":
                self.sink.note(record)
            else:
                assert host is not None, "a tensor capture has its values"
                self.sink.add(record, host)

    def _host(self, array: Array, axes: tuple[str, ...]) -> tuple[Host | None, str | None]:
        """Return canonical values and digest, where they are kept."""
        if self.request.level == "summary" and not self.request.digests:
            return None, None
        host = canonical_rows(np.asarray(array), axes, self.segment)
        return host, digest(host)

    def _shape(self, axes: tuple[str, ...], shape: Shape) -> tuple[Shape, int]:
        """Return the shape without padding, and how many of its elements the run computed."""
        if (axes, shape) not in self._counted:
            kept = canonical_shape(shape, axes, self.segment)
            mask = valid_mask(axes, kept, self.segment)
            size = math.prod(kept)
            counted = size if mask is None else int(mask.sum()) * size // mask.size
            self._counted[axes, shape] = kept, counted
        return self._counted[axes, shape]


def canonical_rows(array: Host, axes: tuple[str, ...], segment: Segment) -> Host:
    """Return the array without bucket padding: T of the segment, S of what is cached.

    Keys lie in append order, as a cache without a ring keeps them; those that a row does not
    have are zero.
    """
    kept = canonical_shape(array.shape, axes, segment)
    array = array[tuple(slice(size) for size in kept)]
    counts = np.asarray(segment.cache_token_count)
    if "S" in axes and "B" in axes and (counts < counts.max()).any():
        shape = [1] * array.ndim
        shape[axes.index("B")], shape[axes.index("S")] = counts.size, counts.max()
        cached = (np.arange(counts.max())[None, :] < counts[:, None]).reshape(shape)
        array = np.where(cached, array, np.zeros((), array.dtype))
    return np.ascontiguousarray(array)
