"""Traces made by hand: a few arrays, or thousands of checkpoints over one sparse file."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from cke.runtime.records import record_of, split_id
from cke.runtime.schedule import CaptureRequest, plan_segments, tokens_sha256
from cke.runtime.trace_reader import TraceFolder, read_trace
from cke.runtime.trace_writer import DOCUMENT, TENSORS, TraceWriter, body_sha256
from cke.schemas.trace import SCHEMA, VERSION, Body, Identity, Neutrality, Producer, Record, Trace

Value = tuple[str, tuple[str, ...], np.ndarray]


def body_of(request: CaptureRequest, side: str = "subject", **producer: object) -> Body:
    """The body of a trace of `request`, without records."""
    facts = {
        "name": "cke" if side == "subject" else "pytorch",
        "version": "1",
        "dtype": "f32",
        "weight_dtypes": {"float32": 1},
        "settings": {},
        "facts": {},
    }
    return Body(
        side="subject" if side == "subject" else "oracle",
        producer=Producer(**{**facts, **producer}),
        identity=Identity(
            model_sha256=None,
            family="toy",
            circuit=None,
            manifest_sha256=None,
            tokens_sha256=tokens_sha256(request),
        ),
        segments=plan_segments(request),
        records=(),
        cache_layout=None,
        threads=1,
        mesh={"devices": 1},
        environment={},
        neutrality=Neutrality(
            status="neutral",
            control_equal=True,
            outputs_equal=True,
            mode="aggregate",
            compared_outputs=1,
        ),
    )


def write_trace(
    out: Path,
    request: CaptureRequest,
    values: Sequence[Value | tuple[str, tuple[str, ...], np.ndarray, str, int]],
    side: str = "subject",
    body: Body | None = None,
) -> TraceFolder:
    """Write `(checkpoint id, axes, array[, role, segment])` in order as a trace and read it."""
    with TraceWriter(out) as writer:
        for order, (checkpoint, axes, array, *rest) in enumerate(values):
            role, segment = (rest[0] or None, rest[1]) if rest else (None, 0)
            name, layer = split_id(checkpoint)
            record = record_of(
                array,
                name=name,
                layer=layer,
                phase=plan_segments(request)[segment].phase,
                segment=segment,
                axes=axes,
                role=role,
                order=order,
            )
            writer.add(record, array)
        writer.close(body or body_of(request, side))
    return read_trace(out)


def write_sparse(
    out: Path, checkpoints: int, shape: tuple[int, int, int], changed: dict[int, float]
) -> TraceFolder:
    """Write zeros of `shape` for every checkpoint as one sparse file; `changed[i]` is element 0."""
    size = 4 * int(np.prod(shape))
    zeros = _sha256(b"", size)
    records: list[Record] = []
    entries: dict[str, object] = {}
    for i in range(checkpoints):
        key = f"0/layer.{i}.layer_output"
        entries[key] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [i * size, (i + 1) * size],
        }
        like = record_of(
            np.zeros((1, 1, 1), np.float32),
            name="layer_output",
            layer=i,
            phase="prefill",
            segment=0,
            axes=("B", "T", "D"),
            order=i,
        )
        first = np.float32(changed[i]).tobytes() if i in changed else b""
        records.append(
            msgspec.structs.replace(
                like,
                shape=shape,
                sha256=_sha256(first, size - 4) if first else zeros,
                tensor_path=f"{TENSORS}#{key}",
            )
        )
    header = json.dumps(entries).encode()
    out.mkdir()
    with (out / TENSORS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i, value in changed.items():
            file.seek(8 + len(header) + i * size)
            file.write(np.float32(value).tobytes())
        file.truncate(8 + len(header) + checkpoints * size)
    request = CaptureRequest(tokens=(tuple(range(1, shape[1] + 1)),))
    body = msgspec.structs.replace(body_of(request), records=tuple(records))
    trace = Trace(
        schema=SCHEMA, version=VERSION, body=body, body_sha256=body_sha256(body), volatile={}
    )
    (out / DOCUMENT).write_bytes(msgspec.json.encode(trace))
    return read_trace(out)


def _sha256(first: bytes, zeros: int) -> str:
    digest = hashlib.sha256(first)
    block = bytes(1 << 20)
    for start in range(0, zeros, len(block)):
        digest.update(block[: min(len(block), zeros - start)])
    return digest.hexdigest()
