"""Captured device arrays become records: canonical rows, digests, and summaries of a program.

What a step returned is treated when it is there and let go before the next one, so that memory
holds one group of layers. A group is one layer; in a decode step, whose captures are small, it is
every layer up to GROUP bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import jax
import msgspec
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cke.runtime.buckets import query_bucket
from cke.runtime.edges import Bound, Edges
from cke.runtime.host_summaries import host_summaries
from cke.runtime.loaded_kernels import Contracts
from cke.runtime.records import WIRE_DTYPES, digest, join_id
from cke.runtime.schedule import CaptureRequest
from cke.runtime.summaries import Axes, places, summary_of, summary_program
from cke.runtime.trace_writer import Mark
from cke.runtime.validity import canonical_shape, valid_mask
from cke.schemas.trace import Phase, Record, Segment, Summary

Host = NDArray[np.generic]

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


class Wanted(msgspec.Struct, frozen=True):
    """One capture of a step that the request asks for; `source` is the key of its equal."""

    key: str
    bound: Bound
    array: Array
    source: str | None


class Collector:
    """Takes the captures of one forward, step by step, and gives records to the sink."""

    def __init__(
        self, edges: Edges, request: CaptureRequest, sink: Sink, contracts: Contracts
    ) -> None:
        self.edges = edges
        self.request = request
        self.sink = sink
        self.contracts = contracts
        self._pending: list[list[Wanted]] = []
        self._bytes = 0

    def begin(self, segment: Segment) -> None:
        """Start a forward."""
        self.segment = segment
        width = len(segment.tokens[0])
        self.phase: Phase = "decode" if width == 1 else "prefill"
        bucket = query_bucket(width)
        where = places(segment, bucket)
        self._padded = bool((where["positions"] < 0).any())
        self._where = jax.device_put(where)
        self._limit = GROUP if width == 1 and self.request.level == "summary" else 0
        self._counts: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}

    def watch(self, captured: dict[str, Array]) -> None:
        """Take the captures of one step, or of all of them in the order of execution."""
        for group in self._groups(captured):
            if self._pending and _axes(self._pending[0]) != _axes(group):
                self._flush()
            self._pending.append(group)
            self._bytes += sum(item.array.nbytes for item in group)
            if self._bytes >= self._limit:
                self._flush()

    def finish(self) -> None:
        """End the forward: nothing is left to treat."""
        self._flush()

    def _groups(self, captured: dict[str, Array]) -> list[list[Wanted]]:
        """Return the wanted captures by layer; an array that is not wanted is let go."""
        by_layer: dict[int | None, list[Wanted]] = {}
        for key in list(captured):
            array = captured.pop(key)
            bound = self.edges.bindings.get((self.phase, key))
            if bound is not None and self.request.wants(bound[0].checkpoint.name, bound[2]):
                source = self.edges.sources.get((self.phase, key))
                by_layer.setdefault(bound[2], []).append(Wanted(key, bound, array, source))
        return [sorted(group, key=lambda item: item.bound[1]) for group in by_layer.values()]

    def _flush(self) -> None:
        groups, self._pending, self._bytes = self._pending, [], 0
        if not groups:
            return
        distinct = [_distinct(group) for group in groups]
        rows = self._numbers([{_name(i): i.array for i in group} for group in distinct], groups[0])
        hosts = [self._hosts(group) for group in distinct]
        for group, own, host, numbers in zip(groups, distinct, hosts, rows, strict=True):
            summaries = {
                item.key: self._summary(item, row) for item, row in zip(own, numbers, strict=True)
            }
            self._emit(group, host, summaries)

    def _numbers(
        self, arrays: list[dict[str, Array]], group: list[Wanted]
    ) -> list[list[list[float]]]:
        """Return the numbers of each edge of each layer, where the arrays are."""
        axes = _axes(group)
        if jax.default_backend() == "cpu":
            return host_summaries(arrays, axes, self.segment)
        found = summary_program(tuple(arrays), self._where, axes=axes, padded=self._padded)
        rows: list[list[list[float]]] = np.asarray(found).tolist()
        return rows

    def _hosts(self, group: list[Wanted]) -> dict[str, tuple[Host, str]]:
        """Return canonical values and digests, where they are kept."""
        if self.request.level == "summary" and not self.request.digests:
            return {}
        found: dict[str, tuple[Host, str]] = {}
        for item in group:
            axes = item.bound[0].type.axes
            host = canonical_rows(np.asarray(item.array), axes, self.segment)
            found[item.key] = (host, digest(host))
        return found

    def _summary(self, item: Wanted, row: list[float]) -> Summary:
        axes = item.bound[0].type.axes
        shape = canonical_shape(item.array.shape, axes, self.segment)
        if (axes, shape) not in self._counts:
            mask = valid_mask(axes, shape, self.segment)
            size = int(np.prod(shape))
            counted = size if mask is None else int(mask.sum()) * size // mask.size
            self._counts[axes, shape] = counted
        return summary_of(row, self._counts[axes, shape])

    def _emit(
        self,
        group: list[Wanted],
        hosts: Mapping[str, tuple[Host, str]],
        summaries: Mapping[str, Summary],
    ) -> None:
        for item in group:
            key = item.key if item.key in summaries else item.source or ""
            record = self._record(item, summaries[key])
            host, sha256 = hosts.get(key, (None, None))
            record = msgspec.structs.replace(record, sha256=sha256)
            if self.request.level == "tensor":
                assert host is not None, "a tensor capture has its values"
                self.sink.add(record, host)
            else:
                self.sink.note(record)

    def _record(self, item: Wanted, summary: Summary) -> Record:
        binding, order, layer = item.bound
        made_by = binding.phase, binding.function, binding.call
        numerical, effective = self.contracts.get(made_by, (None, None))
        return Record(
            checkpoint_id=join_id(binding.checkpoint.name, layer),
            version=binding.checkpoint.version,
            role=binding.checkpoint.role,
            layer=layer,
            phase=self.segment.phase,
            segment=self.segment.index,
            tensor_path=None,
            dtype=WIRE_DTYPES[item.array.dtype.name],
            shape=canonical_shape(item.array.shape, binding.type.axes, self.segment),
            axes=binding.type.axes,
            sha256=None,
            summary=summary,
            kernel_id=binding.kernel_id or None,
            numerical_contract_id=numerical,
            effective_contract_id=effective,
            order=order,
            alias_of=self.edges.aliased(self.phase, item.key),
            level=self.request.level,
        )


def _distinct(group: list[Wanted]) -> list[Wanted]:
    """Return the captures of a step whose values no other one of it has by construction."""
    keys = {item.key for item in group}
    return [item for item in group if item.source not in keys]


def _axes(group: Iterable[Wanted]) -> Axes:
    return tuple((_name(item), item.bound[0].type.axes) for item in _distinct(list(group)))


def _name(item: Wanted) -> str:
    """Return the key without its layer, so that the layers of one kind share a program."""
    layer = item.bound[2]
    return item.key if layer is None else item.key.removeprefix(f"layer.{layer}.")


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
