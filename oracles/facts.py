"""Facts that are measured on a side's own tensors and process, against what the side declares.

Goal: an oracle that lies about its dtype, axes, version or tokens is caught before any number is
compared. Each finding carries a failure class of the closed list and both sides of the
contradiction. `checked` says how much was measured, so that silence is never mistaken for a pass.
"""

import importlib.metadata
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.oracles.base import Array
from cke.oracles.relations import Exchange, check_relations
from cke.runtime.records import RUN_TO_WIRE, digest, split_id
from cke.runtime.schedule import Rows, inputs_sha256
from cke.runtime.trace_reader import TraceFolder, given_inputs
from cke.schemas.trace import Body, Record

Float = NDArray[np.float64]
PATCHES = "patch_embedding"
"""Rows before a class row joins them: fewer than the encoder's, by what the circuit says."""
Fact = Literal["tokens", "version", "dtype", "shape", "axes", "layers"]
FactClass = Literal["INPUT_TOKEN_MISMATCH", "IDENTITY_MISMATCH", "DIAGNOSTIC_EXPORT_MAPPING"]
CLASS_OF: dict[str, FactClass] = {
    "tokens": "INPUT_TOKEN_MISMATCH",
    "version": "IDENTITY_MISMATCH",
    "dtype": "DIAGNOSTIC_EXPORT_MAPPING",
    "shape": "DIAGNOSTIC_EXPORT_MAPPING",
    "axes": "DIAGNOSTIC_EXPORT_MAPPING",
    "layers": "DIAGNOSTIC_EXPORT_MAPPING",
}
PACKAGES = {"pytorch": "transformers", "llamacpp": "llama-cpp-python"}
WIDTHS = {"fp64": 3, "fp32": 2, "fp16": 1, "bf16": 1}
NARROWER: dict[str, tuple[tuple[str, Any], ...]] = {
    "fp64": (("bf16", ml_dtypes.bfloat16), ("fp32", np.float32)),
    "fp32": (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)),
}
ENOUGH = 32
"""Distinct values that a tensor needs before its precision says something."""
SAMPLE = 1 << 18
POSITIONS = 64
SAME_ROW = 0.05


class FactFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A declared fact that measurement contradicts; `failure_class` is the wire name."""

    failure_class: FactClass
    fact: Fact
    declared: str
    measured: str
    evidence: str
    checkpoint_id: str | None = None
    role: str | None = None
    segment: int | None = None

    def __str__(self) -> str:
        where = f" at {self.checkpoint_id}" if self.checkpoint_id else ""
        return (
            f"{self.failure_class}{where}: {self.fact} declared {self.declared}, "
            f"measured {self.measured} ({self.evidence})"
        )


class Facts(msgspec.Struct, frozen=True):
    """Every contradiction in order, and how many measurements of each fact were made."""

    findings: tuple[FactFinding, ...]
    checked: dict[str, int]


def check_facts(
    side: TraceFolder,
    *,
    tables: Iterable[Array] = (),
    version: str | None = None,
    loaded: dict[str, int] | None = None,
) -> Facts:
    """Return what the tensors of a trace, and its producer's process, say about its declaration.

    `tables` are weights with a row for each token or position, among them the embedding: with them
    the tokens that were embedded are read off the embedding checkpoint. `version` and `loaded` are
    measured on a live process (`measured_version`, `loaded_dtypes`); None for a recorded side.
    """
    checked: dict[str, int] = {}
    findings = [
        *_tokens(side, list(tables), checked),
        *_process(side.trace.body, version, loaded, checked),
        *_shapes(side, checked),
        *_dtypes(side, checked),
        *_axes(side, checked),
    ]
    return Facts(tuple(findings), checked)


def measured_version(producer: str) -> str | None:
    """Return the version of the installed package behind an oracle, None when there is none."""
    package = PACKAGES.get(producer)
    return None if package is None else importlib.metadata.version(package)


def loaded_dtypes(weights: Iterable[tuple[str, Array]]) -> dict[str, int]:
    """Return how many loaded tensors have each dtype."""
    counts: dict[str, int] = {}
    for _, array in weights:
        counts[array.dtype.name] = counts.get(array.dtype.name, 0) + 1
    return counts


def declared_tokens(body: Body) -> tuple[Rows, Rows]:
    """Return the prompt's rows and the forced steps, as the schedule's segments hold them."""
    rows: list[list[int]] = [[] for _ in body.segments[0].tokens] if body.segments else []
    forced: list[tuple[int, ...]] = []
    for segment in body.segments:
        if segment.phase == "decode":
            forced.append(tuple(row[0] for row in segment.tokens))
            continue
        for kept, tokens, positions in zip(rows, segment.tokens, segment.positions, strict=True):
            kept += [t for t, p in zip(tokens, positions, strict=True) if p >= 0]
    return tuple(map(tuple, rows)), tuple(forced)


def _tokens(
    side: TraceFolder, tables: list[Array], checked: dict[str, int]
) -> Iterator[FactFinding]:
    body = side.trace.body
    given = tuple(record.sha256 for record in given_inputs(body))
    scheduled = inputs_sha256(*declared_tokens(body), given)
    checked["tokens"] = 1
    if scheduled != body.identity.tokens_sha256:
        yield _finding(
            "tokens",
            body.identity.tokens_sha256[:12],
            scheduled[:12],
            "the digest of the tokens that the segments hold",
        )
    for record in () if given else body.records:
        if record.checkpoint_id == "embedding" and record.tensor_path is not None:
            yield from _embedded(side, record, tables, checked)


def _embedded(
    side: TraceFolder, record: Record, tables: list[Array], checked: dict[str, int]
) -> Iterator[FactFinding]:
    """Read the tokens off the embedding: each row is the scaled row of its token in a table."""
    segment = side.trace.body.segments[record.segment]
    array = np.asarray(side.array(record, digest), np.float64)
    order = [record.axes.index(name) for name in ("B", "T", "D")]
    rows = array.transpose(order)
    flat = [
        (token, position, rows[b, t])
        for b, (tokens, positions) in enumerate(zip(segment.tokens, segment.positions, strict=True))
        for t, (token, position) in enumerate(zip(tokens, positions, strict=True))
        if position >= 0
    ][:POSITIONS]
    declared = [token for token, _, _ in flat]
    made = np.stack([row for _, _, row in flat])
    checked["tokens"] += len(flat)
    wide = [table for table in tables if table.ndim == 2 and table.shape[1] == made.shape[1]]
    fitting = sorted(wide, key=len, reverse=True)
    if not fitting:
        yield from _pattern(record, declared, made)
        return
    steps = [position for _, position, _ in flat]
    if any(_explains(table, declared, steps, made, fitting) for table in fitting):
        return
    measured = _read_off(fitting, steps, made)
    if measured is not None:
        yield _finding(
            "tokens",
            _listed(declared),
            _listed(measured),
            "the rows of the embedding that were looked up",
            record,
        )


def _read_off(tables: list[Array], steps: list[int], made: Float) -> list[int] | None:
    """Return the tokens whose rows these are; None when they are no rows, as behind a norm."""
    for table in tables:
        learned = (other for other in tables if other is not table and max(steps) < len(other))
        for added in (None, *learned):
            rows = made if added is None else made - np.asarray(added[steps], np.float64)
            found = [_nearest(table, row) for row in rows]
            if _explains(table, found, steps, made, tables):
                return found
    return None


def _explains(
    table: Array, tokens: list[int], positions: list[int], made: Float, others: list[Array]
) -> bool:
    """Return whether the rows are those of `tokens`, scaled, or with a learned position added."""
    if max(tokens) >= len(table):
        return False
    looked = np.asarray(table[tokens], np.float64)
    scale = np.sum(looked * made) / max(np.sum(looked * looked), 1e-300)
    if _close(scale * looked, made):
        return True
    learned = (other for other in others if other is not table and max(positions) < len(other))
    return any(_close(looked + np.asarray(other[positions], np.float64), made) for other in learned)


def _close(expected: Float, made: Float) -> bool:
    error = np.linalg.norm(expected - made, axis=-1)
    return bool(np.all(error <= SAME_ROW * np.linalg.norm(made, axis=-1) + 1e-12))


def _nearest(table: Array, row: Float) -> int:
    wide = np.asarray(table, np.float64)
    norms = np.linalg.norm(wide, axis=1) * np.linalg.norm(row)
    return int(np.argmax(wide @ row / np.maximum(norms, 1e-300)))


def _pattern(record: Record, declared: list[int], made: Float) -> Iterator[FactFinding]:
    """Without a table: rows of two different tokens are never the same row."""
    seen: dict[bytes, int] = {}
    for token, row in zip(declared, made, strict=True):
        before = seen.setdefault(row.tobytes(), token)
        if before != token:
            evidence = "two declared tokens have one embedding"
            yield _finding("tokens", f"{before} and {token}", "one token twice", evidence, record)
            return


def _process(
    body: Body, version: str | None, loaded: dict[str, int] | None, checked: dict[str, int]
) -> Iterator[FactFinding]:
    producer = body.producer
    if version is not None:
        checked["version"] = 1
        if producer.version != version:
            evidence = f"the package `{PACKAGES.get(producer.name, producer.name)}` as installed"
            yield _finding("version", producer.version, version, evidence)
    if loaded is not None:
        checked["dtype"] = 1
        if producer.weight_dtypes != loaded:
            evidence = "the loaded tensors, counted by dtype"
            yield _finding("dtype", str(producer.weight_dtypes), str(loaded), evidence)


def _shapes(side: TraceFolder, checked: dict[str, int]) -> Iterator[FactFinding]:
    """Compare each axis with the schedule and with the sizes that the producer states.

    A part of a split keeps the name of the axis that it is a part of, and is shorter.
    """
    body = side.trace.body
    stated = {
        name: value
        for name, value in body.producer.facts.items()
        if isinstance(value, int) and name.isupper() and len(name) == 1
    }
    checked["shape"] = 0
    for record in body.records:
        segment = body.segments[record.segment]
        sizes = {
            **stated,
            "B": len(segment.tokens),
            "T": len(segment.tokens[0]),
            "S": max(segment.cache_token_count),
        }
        if record.checkpoint_id == PATCHES:
            del sizes["T"]
        part = split_id(record.checkpoint_id)[0].endswith("/split")
        for axis, size in zip(record.axes, record.shape, strict=True):
            checked["shape"] += axis in sizes
            if sizes.get(axis, size) != size and not (part and size < sizes[axis]):
                yield _finding(
                    "axes" if sizes[axis] in record.shape else "shape",
                    f"{axis} = {sizes[axis]}",
                    f"{axis} = {size} in {list(record.shape)} over {list(record.axes)}",
                    "the schedule and the sizes of the model",
                    record,
                )
                break
    layers = [record.layer for record in body.records if record.layer is not None]
    counted = body.producer.facts.get("layers")
    if layers and isinstance(counted, int) and max(layers) >= counted:
        evidence = "the layers that were captured"
        yield _finding("layers", str(counted), str(max(layers) + 1), evidence)


def _dtypes(side: TraceFolder, checked: dict[str, int]) -> Iterator[FactFinding]:
    """Measure the precision of computed values: bits that a wider dtype would have and they lack.

    A lookup is left out: weights of a narrow file stay narrow in any dtype.
    """
    body = side.trace.body
    declared = WIDTHS.get(RUN_TO_WIRE.get(body.producer.dtype, ""), 0)
    narrow: dict[str, list[Record]] = {}
    measured = 0
    for record in body.records:
        if record.tensor_path is None or record.dtype not in NARROWER or _is_lookup(record):
            continue
        found = _precision(np.asarray(side.array(record, digest)), record.dtype)
        measured += found is not None
        if found is not None and WIDTHS[found] < min(WIDTHS[record.dtype], declared):
            narrow.setdefault(found, []).append(record)
    checked["dtype"] = checked.get("dtype", 0) + measured
    for found, records in narrow.items():
        yield _finding(
            "dtype",
            records[0].dtype,
            found,
            f"the bits of {len(records)} of {measured} measured tensors",
            records[0],
        )


def _precision(array: Array, dtype: str) -> str | None:
    """Return the narrowest dtype that holds every value; None when too few values tell."""
    flat = array.reshape(-1)[:SAMPLE]
    values = flat[np.isfinite(flat) & (flat != 0)]
    if np.unique(np.abs(values[: 64 * ENOUGH])).size < ENOUGH:
        return None
    for name, kind in NARROWER[dtype]:
        with np.errstate(over="ignore", under="ignore"):
            same = np.array_equal(values.astype(kind).astype(values.dtype), values)
        if same:
            return name
    return dtype


def _is_lookup(record: Record) -> bool:
    name = record.checkpoint_id
    return name in ("embedding", "layer.0.layer_input") or name.endswith("/embedding")


def _axes(side: TraceFolder, checked: dict[str, int]) -> Iterator[FactFinding]:
    checked["axes"] = 0
    seen: set[tuple[str, str | None]] = set()
    for telling, exchanges in check_relations(side):
        checked["axes"] += telling
        for exchange in exchanges:
            key = (exchange.record.checkpoint_id, exchange.record.role)
            if key not in seen:
                seen.add(key)
                yield _exchanged(exchange)


def _exchanged(exchange: Exchange) -> FactFinding:
    return _finding(
        "axes",
        " ".join(exchange.record.axes),
        " ".join(exchange.measured),
        exchange.relation,
        exchange.record,
    )


def _finding(
    fact: Fact, declared: str, measured: str, evidence: str, record: Record | None = None
) -> FactFinding:
    return FactFinding(
        failure_class=CLASS_OF[fact],
        fact=fact,
        declared=declared,
        measured=measured,
        evidence=evidence,
        checkpoint_id=None if record is None else record.checkpoint_id,
        role=None if record is None else record.role,
        segment=None if record is None else record.segment,
    )


def _listed(tokens: list[int]) -> str:
    return " ".join(map(str, tokens[:8])) + (" …" if len(tokens) > 8 else "")
