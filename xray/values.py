"""Values of a trace by graph edge, and what the run was given: tokens, positions, pixels."""

import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import digest
from cke.runtime.schedule import encoder_inputs
from cke.runtime.trace_reader import TraceFolder, given_inputs
from cke.schemas.trace import Record, Segment
from cke.xray.graph import ProgramGraph, Site

Array = NDArray[np.generic]


class TraceValues:
    """The captures of one trace, in the subject's axes, by segment and graph edge."""

    def __init__(self, *folders: TraceFolder) -> None:
        self.folders = folders
        self.segments: tuple[Segment, ...] = folders[0].trace.body.segments
        self._found: dict[tuple[int, str, str | None], tuple[TraceFolder, Record]] = {}
        for folder in folders:
            for record in folder.trace.body.records:
                key = (record.segment, record.checkpoint_id, record.role)
                if record.tensor_path is not None:
                    self._found.setdefault(key, (folder, record))
        self._kept: dict[tuple[int, str, Site], Array | None] = {}

    def record(self, graph: ProgramGraph, segment: int, site: Site) -> Record | None:
        """Return the record that shows a value as its readers see it, None when there is none.

        Of several checkpoints that are equal in the circuit the last one is meant: what an oracle
        does between them, its later operations have read.
        """
        shown = self.records(graph, segment, site)
        return shown[-1] if shown else None

    def records(self, graph: ProgramGraph, segment: int, site: Site) -> tuple[Record, ...]:
        """Return every record that shows a value, in the order in which it is named.

        What a cache takes (`new_key`) is left out where the value has a name of its own: which of
        its operands an append reads is the circuit's statement, not the oracle's.
        """
        keys = ((segment, point.checkpoint_id, point.role) for point in graph.points_of(site))
        found = tuple(self._found[key][1] for key in keys if key in self._found)
        own = tuple(item for item in found if not (item.role or "").startswith("new_"))
        return own or found

    def value(self, graph: ProgramGraph, segment: int, site: Site) -> Array | None:
        """Return a value in the axes of the graph; inputs of the program come from the schedule."""
        key = (segment, graph.phase, graph.origin(site))
        if key not in self._kept:
            self._kept[key] = self._read(graph, segment, key[2])
        return self._kept[key]

    def _read(self, graph: ProgramGraph, segment: int, origin: Site) -> Array | None:
        if origin.step < 0:
            return self._input(segment, origin.edge)
        op = graph.producer(origin)
        if op is not None and op.operator == "append" and op.results[-1].name == origin.edge:
            return key_positions(self.segments, segment)
        record = self.record(graph, segment, origin)
        return None if record is None else self.shown(graph, segment, origin, record)

    def shown(
        self, graph: ProgramGraph, segment: int, origin: Site, record: Record
    ) -> Array | None:
        """Return what a record shows of a value, in the axes of the graph."""
        folder, _ = self._found[segment, record.checkpoint_id, record.role]
        array = folder.array(record, digest)
        kind = graph.type_of(origin)
        assert kind is not None, "an edge that is captured has a type"
        if sorted(kind.axes) != sorted(record.axes):
            return None
        if kind.axes != record.axes:
            array = array.transpose([record.axes.index(name) for name in kind.axes])
        return np.ascontiguousarray(array)

    def _input(self, segment: int, name: str) -> Array | None:
        for folder in self.folders:
            for record in given_inputs(folder.trace.body):
                if record.checkpoint_id == name:
                    return folder.array(record, digest)
        source = self.segments[segment]
        if source.phase == "encode":
            return encoder_inputs(source).get(name)
        given = {"tokens": source.tokens, "positions": source.positions}
        return np.asarray(given[name], np.int32) if name in given else None


def key_positions(segments: tuple[Segment, ...], segment: int) -> Array:
    """Return i32[B, S]: the position of every key cached after a segment, -1 for none."""
    rows: list[list[int]] = [[] for _ in segments[segment].positions]
    for item in segments[: segment + 1]:
        for row, positions in zip(rows, item.positions, strict=True):
            row.extend(position for position in positions if position >= 0)
    width = max(map(len, rows))
    return np.array([row + [-1] * (width - len(row)) for row in rows], np.int32)
