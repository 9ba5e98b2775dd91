"""Probe inputs that follow from a circuit: a matrix, not a prompt (XRAY-21).

Where a model can go wrong is written in its graph: the windows of its attention, the positions at
which its rope changes, its kinds of layers, its experts. The requests made here reach every cell
that can be reached; which cells a run covered is read off its schedule afterwards.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import msgspec

from cke.runtime.schedule import CaptureRequest
from cke.schemas.graph_ir import GraphIR, Program
from cke.schemas.probe import ProbeCell
from cke.schemas.trace import Segment

POSITIONS = ("zero", "small")
SMALL = 5
KEYS = ("one", "several")
BATCHES = ("one", "two unequal")
EXECUTIONS = ("prefill", "decode", "multi_token_decode", "chunked_prefill")
SHORT = 10
"""Tokens of a row where no window asks for more."""
APPENDED = 3
"""Tokens that a multi-token decode appends at once."""
LAYERS = 2
NO_WINDOW = "no window"


class Shape(msgspec.Struct, frozen=True):
    """What a circuit's graph says about its inputs."""

    windows: tuple[int, ...]
    boundaries: tuple[int, ...]
    learned_positions: int | None
    layers: dict[str, tuple[int, ...]]
    vocabulary: int
    experts: int | None


class Probe(msgspec.Struct, frozen=True):
    """One request and where it stands in the matrix."""

    name: str
    position: str
    batch: str
    request: CaptureRequest


Hit = tuple[str, str, str]


def circuit_shape(graph: GraphIR, context: int | None) -> Shape:
    """Return windows, boundaries of positions, kinds of layers and sizes of a circuit."""
    program = graph.programs[0]
    ops = [op for function in program.functions for op in function.ops]
    windows = {op.attributes.get("window") for op in ops if op.operator == "sdpa"}
    scalings = [op.attributes.get("scaling") or {} for op in ops if op.operator == "rope"]
    originals = {scaling.get("original") for scaling in scalings}
    found = {item for item in {*originals, context} if isinstance(item, int)}
    return Shape(
        windows=tuple(sorted(item for item in windows if isinstance(item, int))),
        boundaries=tuple(sorted(found)) if scalings else (),
        learned_positions=_position_rows(program),
        layers=_first_layers(program),
        vocabulary=graph.dims["V"],
        experts=graph.dims.get("X") if any(op.operator == "route" for op in ops) else None,
    )


def _position_rows(program: Program) -> int | None:
    """Return the rows of the table that positions are looked up in, when there is one."""
    for function in program.functions:
        shapes = {weight.name: weight.type.shape for weight in function.weights}
        for op in function.ops:
            if op.operator == "embedding" and op.inputs[0] == "positions":
                rows = shapes[str(op.weights[0])][0]
                return rows if isinstance(rows, int) else None
    return None


def _first_layers(program: Program) -> dict[str, tuple[int, ...]]:
    kinds: dict[str, tuple[int, ...]] = {}
    for step in program.steps:
        if step.layer is not None and len(kinds.get(step.function, ())) < LAYERS:
            kinds[step.function] = (*kinds.get(step.function, ()), step.layer)
    return kinds


def positions_of(shape: Shape) -> dict[str, int]:
    """Return the first position of each row of the matrix by its name."""
    beyond = {f"beyond {limit}": limit + 1 for limit in shape.boundaries}
    return {"zero": 0, "small": SMALL, **beyond}


def derive_probes(shape: Shape, special: tuple[int, ...], max_tokens: int) -> list[Probe]:
    """Return the requests whose runs cover the matrix, for one dtype.

    Rows are longer than every window that fits into `max_tokens`. Tokens repeat, and the special
    ones that are known stand among them.
    """
    fitting = [window for window in shape.windows if window + APPENDED < max_tokens]
    length = max(SHORT, *(window + APPENDED + 1 for window in fitting), 0)
    layers = frozenset(layer for kind in shape.layers.values() for layer in kind)
    probes: list[Probe] = []
    for (position, first), batch in product(positions_of(shape).items(), BATCHES):
        if shape.learned_positions is not None and first + length + 2 > shape.learned_positions:
            continue
        rows = _rows(shape.vocabulary, length, special, batch)
        forced = tuple(tuple(_token(shape.vocabulary, 90 + s) for _ in rows) for s in range(2))
        half = length // 2
        early = (half + APPENDED,) if length > 2 * SHORT else ()
        chunks = (half, *early, length - APPENDED, length)
        for name, tokens, segments, steps in (
            ("whole", rows, (), forced),
            ("chunked", rows, chunks, forced[:1]),
            ("single", tuple(row[:1] for row in rows), (), forced[:1]),
        ):
            if name == "single" and batch != "one":
                continue
            request = CaptureRequest(
                tokens=tokens,
                segments=segments,
                forced=steps,
                layers=layers,
                first_position=first,
            )
            label = "-".join((position, batch, name)).replace(" ", "_")
            probes.append(Probe(label, position, batch, request))
    return probes


def _rows(
    vocabulary: int, length: int, special: tuple[int, ...], batch: str
) -> tuple[tuple[int, ...], ...]:
    row = [_token(vocabulary, i) for i in range(length)]
    row[3] = row[2]
    for place, token in zip((0, 4, 6), special, strict=False):
        row[place] = token
    if batch == "one":
        return (tuple(row),)
    other = [_token(vocabulary, 40 + i) for i in range(max(2, length // 2))]
    return (tuple(row), tuple(other))


def _token(vocabulary: int, index: int) -> int:
    """Return a token of a fixed sequence that spreads over the vocabulary."""
    return (index * 2654435761 + 12345) % (1 << 32) * vocabulary >> 32


def observed(segments: Iterable[Segment], windows: tuple[int, ...]) -> set[Hit]:
    """Return what the queries of a run saw, as (keys, length, execution)."""
    hits: set[Hit] = set()
    forwards = list(segments)
    for segment in forwards:
        execution = _execution(segment, forwards)
        for start, positions in zip(segment.append_index, segment.positions, strict=True):
            for count in range(start + 1, start + 1 + sum(p >= 0 for p in positions)):
                keys = "one" if count == 1 else "several"
                hits.update((keys, length, execution) for length in _lengths(count, windows))
    return hits


def _execution(segment: Segment, forwards: list[Segment]) -> str:
    width = len(segment.tokens[0])
    if width == 1:
        return "decode"
    if segment.phase == "prefill" and segment.cache_action == "reset":
        parts = sum(item.phase == "prefill" for item in forwards)
        return "prefill" if parts == 1 else "chunked_prefill"
    return "multi_token_decode" if width <= APPENDED else "chunked_prefill"


def _lengths(count: int, windows: tuple[int, ...]) -> Iterator[str]:
    if not windows:
        yield NO_WINDOW
    for window in windows:
        yield f"{'beyond' if count > window else 'within'} {window}"


def matrix(shape: Shape) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield every cell for one dtype: position, keys, length, batch, execution."""
    lengths = [f"{side} {window}" for window in shape.windows for side in ("within", "beyond")]
    yield from product(positions_of(shape), KEYS, lengths or [NO_WINDOW], BATCHES, EXECUTIONS)


def covered_cells(
    shape: Shape, dtype: str, hits: dict[str, tuple[Probe, set[Hit]]], max_tokens: int
) -> Iterator[ProbeCell]:
    """Yield every cell with the first run that reached it, or the reason why none did."""
    for position, keys, length, batch, execution in matrix(shape):
        run = next(
            (
                name
                for name, (probe, seen) in hits.items()
                if (probe.position, probe.batch) == (position, batch)
                and (keys, length, execution) in seen
            ),
            None,
        )
        reason = None
        if run is None:
            reason = _reason(shape, (position, keys, length, batch, execution), max_tokens)
        yield ProbeCell(
            position=position,
            keys=keys,
            length=length,
            batch=batch,
            execution=execution,
            dtype=dtype,
            run=run,
            reason=reason,
        )


def _reason(shape: Shape, cell: tuple[str, str, str, str, str], max_tokens: int) -> str:
    position, keys, length, batch, execution = cell
    side, _, window = length.partition(" ")
    if keys == "one" and side == "beyond":
        return "one key is not beyond a window"
    if keys == "one" and execution == "multi_token_decode":
        return "tokens that are appended at once follow cached ones"
    if keys == "one" and execution == "decode" and batch != "one":
        return "rows of one token are not of unequal length"
    if shape.learned_positions is not None and position not in POSITIONS:
        return f"positions are looked up in a table of {shape.learned_positions} rows"
    if side == "beyond" and int(window) + APPENDED >= max_tokens:
        return f"a row of more than {window} tokens exceeds the limit of {max_tokens}"
    return "no run reached it"
