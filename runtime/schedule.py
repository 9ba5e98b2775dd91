"""The schedule of a captured run: which tokens, in which forwards, at which positions.

Subjects and oracles plan the same request with the same function, so that a difference of
schedules is a difference of what was asked for. Rows of unequal length are padded on the right
with position -1; padding is never attended to and never written to a cache.
"""

import hashlib
import json
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.records import digest, join_id, record_of
from cke.schemas.trace import Level, Phase, Record, Segment

PADDING = -1
Inputs = dict[str, NDArray[Any]]
Rows = tuple[tuple[int, ...], ...]


class Pixels:
    """What an encoder of images is given: f32[B, Z, I, J], as its processor made them.

    Two are equal when their bytes are.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.values: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
        self.sha256 = digest(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pixels) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and what to keep.

    `tokens` are the prompt's rows, of equal or unequal length; `segments` are the end columns of
    the prefill forwards (empty: one forward); `forced` are the tokens of each decode step, by row.
    `edges` are names of checkpoints without their layer, or whole ids, None for all; `layers`
    None for all. `encode` says that the circuit has no state: one forward over whole rows. The
    level `summary` keeps numbers of every edge in place of its values, and with `digests` the hash
    of its bytes. With `pixels` a token is a row of the encoder, all of them 0.
    """

    tokens: tuple[tuple[int, ...], ...]
    segments: tuple[int, ...] = ()
    forced: tuple[tuple[int, ...], ...] = ()
    edges: frozenset[str] | None = None
    layers: frozenset[int] | None = None
    first_position: int = 0
    level: Level = "tensor"
    digests: bool = True
    encode: bool = False
    pixels: Pixels | None = None

    def wants(self, name: str, layer: int | None) -> bool:
        """Return whether the edge `name` of `layer` is asked for."""
        if layer is not None and self.layers is not None and layer not in self.layers:
            return False
        if self.edges is None:
            return True
        return name in self.edges or join_id(name, layer) in self.edges


def plan_segments(request: CaptureRequest) -> tuple[Segment, ...]:
    """Return every forward of the request: the prefill segments, then one per decode step."""
    _check(request)
    width = max(map(len, request.tokens))
    ends = request.segments or (width,)
    whole: Phase = "encode" if request.encode else "prefill"
    counts = [0] * len(request.tokens)
    segments: list[Segment] = []
    start = 0
    for end in ends:
        rows = [row[start:end] for row in request.tokens]
        segments.append(_segment(request, segments, rows, counts, end - start, whole))
        start = end
    for step in request.forced:
        rows = [(token,) for token in step]
        segments.append(_segment(request, segments, rows, counts, 1, "decode"))
    return tuple(segments)


def _segment(
    request: CaptureRequest,
    before: list[Segment],
    rows: list[tuple[int, ...]],
    counts: list[int],
    width: int,
    phase: Phase,
) -> Segment:
    index = tuple(counts)
    tokens = tuple(row + (0,) * (width - len(row)) for row in rows)
    positions = tuple(
        tuple(request.first_position + count + i for i in range(len(row)))
        + (PADDING,) * (width - len(row))
        for row, count in zip(rows, counts, strict=True)
    )
    for i, row in enumerate(rows):
        counts[i] += len(row)
    return Segment(
        index=len(before),
        phase=phase,
        tokens=tokens,
        positions=positions,
        cache_action="none" if phase == "encode" else "append" if before else "reset",
        append_index=index,
        cache_token_count=tuple(counts),
        teacher_forced=True,
    )


def program_phase(segment: Segment) -> Phase:
    """Return the phase of the program that runs a segment: a prompt of one token is a decode."""
    if segment.phase == "encode":
        return "encode"
    return "decode" if len(segment.tokens[0]) == 1 else "prefill"


def encoder_inputs(segment: Segment, pixels: Pixels | None = None) -> Inputs:
    """Return the inputs by name of a forward without state; every token is of the first type."""
    if pixels is not None:
        return {"pixels": pixels.values}
    tokens = np.asarray(segment.tokens, np.int32)
    positions = np.asarray(segment.positions, np.int32)
    return {
        "tokens": tokens,
        "types": np.zeros_like(tokens),
        "positions": np.maximum(positions, 0),
        "valid": positions >= 0,
    }


def input_records(request: CaptureRequest) -> tuple[tuple[Record, NDArray[Any]], ...]:
    """Return what the request gives beside tokens, with a record of each."""
    if request.pixels is None:
        return ()
    values = request.pixels.values
    axes = ("B", "Z", "I", "J")
    record = record_of(values, name="pixels", layer=None, phase="encode", segment=0, axes=axes)
    return ((record, values),)


def check_pixels(request: CaptureRequest, wanted: bool) -> None:
    """Refuse a request of tokens for an encoder of images, and one of pixels for any other."""
    if wanted == (request.pixels is not None):
        return
    expected, got = ("pixels", "tokens") if wanted else ("tokens", "pixels")
    help = "give them with --pixels FILE.npy" if wanted else "give --tokens or --prompt"
    raise CkeError(
        Diagnostic(
            code="CKE701",
            message=f"the model expects {expected}, got {got}",
            notes=(Note(help, label="help"),),
        )
    )


def _check(request: CaptureRequest) -> None:
    width = max(map(len, request.tokens), default=0)
    if not request.tokens or not all(request.tokens):
        raise _bad("`tokens` expects at least one token in every row, got an empty row")
    ends = request.segments or (width,)
    if list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] != width:
        raise _bad(
            f"`segments` expects rising end columns that finish at {width}, got {list(ends)}"
        )
    if request.encode and (len(ends) > 1 or request.forced):
        raise _bad("a circuit without state runs in one forward: expected no segments and no steps")
    if any(len(step) != len(request.tokens) for step in request.forced):
        raise _bad(f"`forced` expects {len(request.tokens)} token(s) a step, one for each row")


def _bad(message: str) -> CkeError:
    return CkeError(Diagnostic(code="CKE701", message=message))


def tokens_sha256(request: CaptureRequest) -> str:
    """Return the digest of the tokens, rows, forced steps and pixels included."""
    pixels = () if request.pixels is None else (request.pixels.sha256,)
    return inputs_sha256(request.tokens, request.forced, pixels)


def inputs_sha256(tokens: Rows, forced: Rows, given: tuple[str | None, ...]) -> str:
    """Return the digest of rows of tokens, of forced steps, and of the digests of other inputs."""
    text = json.dumps([tokens, forced, *given], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
