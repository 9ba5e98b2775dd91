"""The recorded oracle: a trace that exists, or a dump that someone made elsewhere.

A trace is given again as it is, for the request that it was made of and for no other. A dump
becomes a trace whose version, dtype, settings and axes are marked as declared by the user.
"""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET

from cke.errors import CkeError, Diagnostic, Note, RejectedError
from cke.oracles.base import Array, Sink
from cke.oracles.dumps import Dump
from cke.oracles.layout import unpack_axes
from cke.oracles.mapping import Entry
from cke.runtime.records import digest, record_of
from cke.runtime.schedule import (
    CaptureRequest,
    input_records,
    plan_segments,
    tokens_sha256,
)
from cke.runtime.trace_reader import given_inputs, read_trace
from cke.schemas.oracle_mapping import DeclaredProducer
from cke.schemas.trace import Body, Identity, Neutrality, Producer, Segment

DECLARED = ("name", "version", "dtype", "settings", "axes", "tokens")
Known = Mapping[tuple[str, str | None], tuple[str, ...]]


class RecordedOracle:
    """A trace folder as an oracle; another request than its own is CKE747."""

    name = "recorded"

    def __init__(self, folder: Path) -> None:
        self.side = read_trace(folder)

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Give the recorded captures that the request wants, and the recorded body."""
        body = self.side.trace.body
        planned = [_schedule(segment) for segment in plan_segments(request)]
        recorded = [_schedule(segment) for segment in body.segments]
        inputs = [record.sha256 for record in given_inputs(body)]
        asked = [record.sha256 for record, _ in input_records(request)]
        if planned != recorded or inputs != asked:
            raise other_tokens(self.side.folder.name, "$.body.segments")
        for record in body.records:
            name = record.checkpoint_id.removeprefix(f"layer.{record.layer}.")
            if record.tensor_path is not None and request.wants(name, record.layer):
                kept = msgspec.structs.replace(record, tensor_path=None)
                sink.add(kept, np.asarray(self.side.array(record, digest)))
        return msgspec.structs.replace(body, records=(), inputs=UNSET)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield nothing: a trace holds no weights."""
        yield from ()


class DumpOracle:
    """Entries of a dump as an oracle; `known` are the circuit's checkpoints with their axes."""

    name = "recorded"

    def __init__(
        self,
        dump: Dump,
        entries: list[Entry],
        producer: DeclaredProducer,
        sizes: Mapping[str, int],
        known: Known,
    ) -> None:
        self.dump = dump
        self.entries = entries
        self.producer = producer
        self.sizes = sizes
        self.known = known
        self.dtypes: dict[str, int] = {}

    def capture(self, request: CaptureRequest, sink: Sink) -> Body:
        """Give every mapped tensor under its checkpoint, and a body of declared facts."""
        segments = plan_segments(request)
        for order, entry in enumerate(self.entries):
            if not 0 <= entry.segment < len(segments):
                raise _bad(
                    "CKE740",
                    entry,
                    f"expected a forward below {len(segments)}, got {entry.segment}",
                )
            self._emit(order, entry, segments[entry.segment], sink)
        return dump_body(self.producer, request, self.sizes)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Yield nothing: a dump of checkpoints holds no weights."""
        yield from ()

    def _emit(self, order: int, entry: Entry, segment: Segment, sink: Sink) -> None:
        array, axes = self._named(entry, segment, self.dump.tensor(entry.file, entry.key))
        record = record_of(
            array,
            name=entry.name,
            layer=entry.layer,
            phase=segment.phase,
            segment=segment.index,
            axes=axes,
            role=entry.role,
            derivation=entry.derivation,
            order=order,
        )
        sink.add(record, array)

    def _named(self, entry: Entry, segment: Segment, array: Array) -> tuple[Array, tuple[str, ...]]:
        """Return the values under named axes; sizes that do not fit are CKE744."""
        if entry.chunk is not None:
            index, count = entry.chunk
            array = np.split(array, count, axis=-1)[index]
        axes, shape = named_axes(entry, segment, array.shape, self.sizes, self.known)
        return np.ascontiguousarray(array).reshape(shape), axes


def named_axes(
    entry: Entry,
    segment: Segment,
    stored: tuple[int, ...],
    sizes: Mapping[str, int],
    known: Known,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the named axes and shape of a stored tensor, checked against circuit and schedule."""
    expected = _known_axes(entry, known)
    facts = {
        **sizes,
        "B": len(segment.tokens),
        "T": len(segment.tokens[0]),
        "S": max(segment.cache_token_count),
    }
    try:
        axes, shape = unpack_axes(entry.axes, stored, facts)
    except (CkeError, ValueError):
        message = f"axes `{entry.axes}` do not fit the stored shape {list(stored)}"
        raise _bad("CKE744", entry, message) from None
    if "B" not in axes and "B" in expected and facts["B"] == 1:
        axes, shape = ("B", *axes), (1, *shape)
    if sorted(axes) != sorted(expected):
        message = f"expected the axes {' '.join(expected)} in any order, got {' '.join(axes)}"
        raise _bad("CKE744", entry, message)
    for name, size in zip(axes, shape, strict=True):
        if facts.get(name, size) != size:
            raise _bad("CKE744", entry, f"expected {name} = {facts[name]}, got {size}")
    return axes, shape


def _known_axes(entry: Entry, known: Known) -> tuple[str, ...]:
    found = known.get((entry.checkpoint_id, entry.role))
    if found is None:
        names = [join for join, _ in known]
        near = difflib.get_close_matches(entry.checkpoint_id, names, 2)
        role = f" with the role `{entry.role}`" if entry.role else ""
        raise CkeError(
            Diagnostic(
                code="CKE743",
                message=f"expected a checkpoint of the circuit, got `{entry.checkpoint_id}`{role}",
                notes=tuple(Note(f"did you mean `{name}`?", label="help") for name in near),
            )
        )
    return found


def dump_body(
    producer: DeclaredProducer, request: CaptureRequest, sizes: Mapping[str, int]
) -> Body:
    """Return the body of a dump's trace: declared facts, no proof of neutrality."""
    return Body(
        side="oracle",
        producer=Producer(
            name=producer.name,
            version=producer.version,
            dtype=producer.dtype,
            weight_dtypes={},
            settings=dict(producer.settings),
            facts=dict(sizes),
            declared=DECLARED,
        ),
        identity=Identity(
            model_sha256=None,
            family=None,
            circuit=None,
            manifest_sha256=None,
            tokens_sha256=tokens_sha256(request),
        ),
        segments=plan_segments(request),
        records=(),
        cache_layout=None,
        threads=0,
        mesh={},
        environment={},
        neutrality=Neutrality(
            status="not_applicable",
            control_equal=None,
            outputs_equal=None,
            mode="imported",
            compared_outputs=0,
        ),
    )


def other_tokens(file: str, path: str | None = None) -> RejectedError:
    """Return the error of a record that was made of another request."""
    return RejectedError(
        Diagnostic(
            code="CKE747",
            file=file,
            path=path,
            message="expected the tokens and forwards of the request, got others",
            notes=(Note("give the tokens that the record was made with", label="help"),),
        )
    )


def _schedule(segment: Segment) -> Segment:
    return msgspec.structs.replace(segment, kernel_batches=(), teacher_forced=True)


def _bad(code: str, entry: Entry, message: str) -> CkeError:
    where = f"{entry.file}#{entry.key}" if entry.key else entry.file
    return CkeError(
        Diagnostic(code=code, file=where, message=f"`{entry.checkpoint_id}`: {message}")
    )
