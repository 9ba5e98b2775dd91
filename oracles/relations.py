"""Axes measured, not trusted: identities that hold between captures only under their true axes.

Where two axes have the same size a shape says nothing. An identity (a residual sum, a rotation that
keeps norms, probabilities that sum to one) that fails as declared and holds with two axes of one
tensor exchanged shows which tensor was labelled wrongly. An identity that holds under no exchange
says nothing about axes.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.runtime.records import digest
from cke.runtime.trace_reader import TraceFolder
from cke.schemas.trace import Record

Float = NDArray[np.float64]
Named = Callable[[tuple[str, ...]], Float]
Key = tuple[int, int | None, str, str | None]
LARGEST = 1 << 22
"""Elements from which on a tensor is not tried under other axes."""
ROUNDING = {"fp64": 1e-9, "fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}


class Relation(msgspec.Struct, frozen=True):
    """An identity between captures of one layer: `error` is relative, zero when it holds."""

    name: str
    members: tuple[tuple[str, str | None], ...]
    error: Callable[[tuple[Named, ...]], float]


class Exchange(msgspec.Struct, frozen=True):
    """A tensor that fits its neighbours only under other axes than declared."""

    record: Record
    measured: tuple[str, ...]
    relation: str


class Outcome(msgspec.Struct, frozen=True):
    """What became of one identity: it holds, or every exchange that would mend it."""

    relation: Relation
    holds: bool
    mends: tuple[Exchange, ...]


def _residual(values: tuple[Named, ...]) -> float:
    start, part, total = (value(("B", "T", "D")) for value in values)
    return _relative(start + part - total, total)


def _norms(values: tuple[Named, ...]) -> float:
    before, after = values
    head = "H" if _has(before, "H") else "K"
    left, right = (np.square(v(("B", "T", head, "E"))).sum(-1) for v in (before, after))
    return _relative(left - right, left)


def _equal(values: tuple[Named, ...]) -> float:
    left, right = (value(("B", "T", "K", "E")) for value in values)
    return _relative(left - right, left)


def _sums(values: tuple[Named, ...]) -> float:
    sums = values[0](("B", "H", "T", "S")).sum(-1)
    return float(np.abs(sums - 1).max(initial=0.0))


def _context(values: tuple[Named, ...]) -> float:
    weights, stored, context = values
    rows, keys = context(("B", "T", "H", "E")), stored(("B", "S", "K", "E"))
    if rows.shape[2] % keys.shape[2]:
        return np.inf
    spread = np.repeat(keys, rows.shape[2] // keys.shape[2], axis=2)
    made = np.einsum("bhts,bshe->bthe", weights(("B", "H", "T", "S")), spread)
    return _relative(made - rows, rows)


def _scores(values: tuple[Named, ...]) -> float:
    """Compare directions: the scale is not known here, and a soft cap leaves no exchange better."""
    query, stored, scores = values
    rows, keys = query(("B", "T", "H", "E")), stored(("B", "S", "K", "E"))
    if rows.shape[2] % keys.shape[2]:
        return np.inf
    spread = np.repeat(keys, rows.shape[2] // keys.shape[2], axis=2)
    made = np.einsum("bthe,bshe->bhts", rows, spread)
    seen = np.tril(np.ones(made.shape[2:], bool), made.shape[3] - made.shape[2])
    left, right = made[..., seen].reshape(-1), scores(("B", "H", "T", "S"))[..., seen].reshape(-1)
    norms = np.linalg.norm(left) * np.linalg.norm(right)
    return float(np.sqrt(max(0.0, 2 - 2 * abs(left @ right) / norms))) if norms else 0.0


def _has(value: Named, axis: str) -> bool:
    names: tuple[str, ...] = getattr(value, "axes", ())
    return axis in names


ATTENTION = "attention."
RELATIONS = (
    Relation(
        "the residual sum of attention",
        (
            ("layer_input", None),
            (f"{ATTENTION}attention_output_projection", None),
            ("post_attention_residual", None),
        ),
        _residual,
    ),
    Relation(
        "the residual sum of the feed-forward part",
        (
            ("post_attention_residual", None),
            ("mlp.mlp_down_projection", None),
            ("layer_output", None),
        ),
        _residual,
    ),
    Relation(
        "rope keeps the norm of a query",
        ((f"{ATTENTION}query_projection_output", None), (f"{ATTENTION}rope_query_output", None)),
        _norms,
    ),
    Relation(
        "rope keeps the norm of a normalised query",
        ((f"{ATTENTION}q_norm_output", None), (f"{ATTENTION}rope_query_output", None)),
        _norms,
    ),
    Relation(
        "rope keeps the norm of a key",
        ((f"{ATTENTION}key_projection_output", None), (f"{ATTENTION}rope_key_output", None)),
        _norms,
    ),
    Relation(
        "rope keeps the norm of a normalised key",
        ((f"{ATTENTION}k_norm_output", None), (f"{ATTENTION}rope_key_output", None)),
        _norms,
    ),
    Relation(
        "the key that is appended is the key after rope",
        ((f"{ATTENTION}rope_key_output", None), (f"{ATTENTION}kv_append", "new_key")),
        _equal,
    ),
    Relation(
        "the value that is appended is the projected value",
        ((f"{ATTENTION}value_projection_output", None), (f"{ATTENTION}kv_append", "new_value")),
        _equal,
    ),
    Relation(
        "probabilities sum to one over keys",
        ((f"{ATTENTION}attention_probabilities", None),),
        _sums,
    ),
    Relation(
        "the context is the values weighted by the probabilities",
        (
            (f"{ATTENTION}attention_probabilities", None),
            (f"{ATTENTION}kv_append", "stored_value"),
            (f"{ATTENTION}attention_context", None),
        ),
        _context,
    ),
    Relation(
        "scores go with the product of queries and keys",
        (
            (f"{ATTENTION}rope_query_output", None),
            (f"{ATTENTION}kv_append", "stored_key"),
            (f"{ATTENTION}attention_scores", None),
        ),
        _scores,
    ),
)


class _Tensor:
    """Values under an assumed order of axes; calling it gives another order."""

    def __init__(self, array: Float, axes: tuple[str, ...]) -> None:
        self.array = array
        self.axes = axes

    def __call__(self, wanted: tuple[str, ...]) -> Float:
        return self.array.transpose([self.axes.index(name) for name in wanted])


def check_relations(side: TraceFolder) -> Iterator[tuple[int, tuple[Exchange, ...]]]:
    """Yield, for each layer of each forward, how many identities said something, and the mends.

    Where several exchanges would mend an identity, the one that mends the most of the layer is
    taken, and then the one nearest to the identity's result.
    """
    records = _records(side)
    groups = sorted({(s, layer) for s, layer, _, _ in records if layer is not None})
    for segment, layer in groups:
        if _padded(side, segment):
            continue
        outcomes: list[Outcome] = []
        for relation in RELATIONS:
            found = [records.get((segment, layer, *member)) for member in relation.members]
            members = [record for record in found if record is not None]
            if len(members) == len(found) and all(_small(item) for item in members):
                outcomes.append(_checked(side, relation, members))
        telling = [item for item in outcomes if item.holds or item.mends]
        yield len(telling), tuple(_chosen([item.mends for item in telling if not item.holds]))


def _chosen(failing: list[tuple[Exchange, ...]]) -> Iterator[Exchange]:
    """Yield exchanges until each failing identity is mended by one of them."""
    left = list(failing)
    while left:
        votes = [(_votes(item, left), place, item) for m in left for place, item in enumerate(m)]
        best = max(votes, key=lambda vote: vote[:2])[2]
        yield best
        left = [mends for mends in left if not any(_same(best, item) for item in mends)]


def _votes(candidate: Exchange, failing: list[tuple[Exchange, ...]]) -> int:
    return sum(any(_same(candidate, item) for item in mends) for mends in failing)


def _same(left: Exchange, right: Exchange) -> bool:
    return left.record is right.record and left.measured == right.measured


def _checked(side: TraceFolder, relation: Relation, members: list[Record]) -> Outcome:
    arrays = [np.asarray(side.array(item, digest), np.float64) for item in members]
    limit = max(ROUNDING[item.dtype] for item in members)
    if _error(relation, arrays, [item.axes for item in members]) <= limit:
        return Outcome(relation, True, ())
    mends: list[Exchange] = []
    for index, record in enumerate(members):
        for axes in _exchanges(record):
            tried = [axes if i == index else item.axes for i, item in enumerate(members)]
            if _error(relation, arrays, tried) <= limit:
                mends.append(Exchange(record, axes, relation.name))
    return Outcome(relation, False, tuple(mends))


def _error(relation: Relation, arrays: list[Float], axes: list[tuple[str, ...]]) -> float:
    named = tuple(_Tensor(array, names) for array, names in zip(arrays, axes, strict=True))
    try:
        return relation.error(named)
    except ValueError:
        return np.inf


def _exchanges(record: Record) -> Iterator[tuple[str, ...]]:
    """Yield the other orders of the declared axes that give each axis the size it had."""
    sizes = dict(zip(record.axes, record.shape, strict=True))
    for axes in permutations(record.axes):
        if axes != record.axes and tuple(sizes[name] for name in axes) == record.shape:
            yield axes


def _records(side: TraceFolder) -> Mapping[Key, Record]:
    found: dict[Key, Record] = {}
    for record in side.trace.body.records:
        name = record.checkpoint_id.removeprefix(f"layer.{record.layer}.")
        if record.tensor_path is not None and record.dtype in ROUNDING:
            found[record.segment, record.layer, name, record.role] = record
    return found


def _small(record: Record) -> bool:
    return int(np.prod(record.shape)) <= LARGEST


def _padded(side: TraceFolder, segment: int) -> bool:
    rows = side.trace.body.segments[segment].positions
    return (
        any(position < 0 for row in rows for position in row)
        or len(set(side.trace.body.segments[segment].cache_token_count)) > 1
    )


def _relative(error: Float, size: Float) -> float:
    scale = float(np.abs(size).max(initial=0.0))
    worst = float(np.abs(error).max(initial=0.0))
    return worst / scale if scale else worst
