"""Weights first: what the subject bound against what the oracle loaded, before any activation.

The oracle's own table says which of its modules makes a checkpoint; the op that makes the same
checkpoint in the circuit must hold the same weight. Names of the subject's sources are not read,
because they may be what is wrong.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cke.kernel_registry.operators import OPERATORS
from cke.schemas.graph_ir import Op
from cke.xray.finding import Finding
from cke.xray.graph import Point, ProgramGraph, Site
from cke.xray.replay import SubjectWeights

Array = NDArray[Any]
OracleWeights = Mapping[tuple[str, str], Array]
"""The oracle's weights by (checkpoint id, operand): `("layer.0.mlp_norm_output", "weight")`."""
LIMIT = {"f32": 1e-6, "bf16": 2.0**-8, "f16": 2.0**-10}


def weights_fault(
    graph: ProgramGraph, weights: SubjectWeights, oracle: OracleWeights, dtype: str
) -> tuple[Finding | None, int]:
    """Return the first weight that differs, in execution order, and how many were compared."""
    count = 0
    joined = _joined_fault(graph, weights)
    if joined is not None:
        return joined, count
    for finding in _compare_all(graph, weights, oracle, dtype):
        if finding is None:
            count += 1
        else:
            return finding, count
    return None, count


def _compare_all(
    graph: ProgramGraph, weights: SubjectWeights, oracle: OracleWeights, dtype: str
) -> Iterator[Finding | None]:
    """Yield one outcome for each weight that both sides show."""
    for index, op in graph.ops():
        held = _held(graph, index, op)
        for point in _shown(graph, index, op):
            for operand, name in held:
                theirs = oracle.get((point.checkpoint_id, operand))
                if theirs is None:
                    continue
                shown = graph.name_of(Site(index, op.results[0].name))
                if name is None:
                    yield _absent(op, operand, shown)
                    continue
                bound = weights.weight(graph.steps[index].weights[name])
                at = Site(index, name)
                found = _compare(graph, at, op, point.checkpoint_id, bound, theirs, oracle, dtype)
                yield found and msgspec.structs.replace(found, checkpoint_id=shown)


def _shown(graph: ProgramGraph, index: int, op: Op) -> Iterator[Point]:
    """Yield the checkpoints of an op's result, and of its one reader that has no weight.

    An oracle gives a scaled lookup or capped logits the name of what follows the product.
    """
    yield from graph.points_of(Site(index, op.results[0].name))
    name = op.results[0].name
    readers = [item for item in graph.function(index).ops if name in item.inputs]
    if len(readers) == 1 and op.weights and not any(readers[0].weights):
        if len(readers[0].inputs) == 1:
            yield from graph.points_of(Site(index, readers[0].results[0].name))


def _joined_fault(graph: ProgramGraph, weights: SubjectWeights) -> Finding | None:
    """Return a weight that kernels take joined, whose parts are not its members in order."""
    for index, step in enumerate(graph.steps):
        function = graph.call_functions[step.function]
        for joined in function.fused:
            whole = np.asarray(weights.placed(graph.phase, graph.step_key(index))[joined.name])
            at = 0
            for member in joined.members:
                part = np.asarray(weights.weight(step.weights[member]))
                size = part.shape[joined.axis]
                place = (slice(None),) * joined.axis + (slice(at, at + size),)
                at += size
                if whole[place].tobytes() == part.tobytes():
                    continue
                op = next(op for op in graph.function(index).ops if member in op.weights)
                return Finding(
                    failure_class="WEIGHT_BINDING_MISMATCH",
                    checkpoint_id=graph.name_of(Site(index, op.results[0].name)),
                    op=op.id,
                    operator=op.operator,
                    kernel_id=op.kernel.kernel_id,
                    source=str(op.span),
                    because=(
                        f"`{graph.step_key(index)}.{joined.name}` is joined of "
                        f"{', '.join(joined.members)}, and does not hold `{member}` in its place",
                    ),
                )
    return None


def _held(graph: ProgramGraph, index: int, op: Op) -> list[tuple[str, str | None]]:
    """Return the weights that an op holds by operand: its own, or, of experts, its inputs."""
    declared = OPERATORS[op.operator]
    found = [
        (operand.name, op.weights[place] if place < len(op.weights) else None)
        for place, operand in enumerate(declared.weights)
    ]
    weights = graph.steps[index].weights
    for operand, name in zip(declared.inputs, op.inputs, strict=False):
        if operand.name in ("weight", "bias") and name in weights:
            found.append((operand.name, name))
    return found


def _absent(op: Op, operand: str, checkpoint_id: str) -> Finding:
    return Finding(
        failure_class="WEIGHT_BINDING_MISMATCH",
        checkpoint_id=checkpoint_id,
        op=op.id,
        operator=op.operator,
        kernel_id=op.kernel.kernel_id,
        source=str(op.span),
        because=(
            f"the oracle's module has a `{operand}`, and `{op.id}` of the circuit binds none",
        ),
    )


def _compare(
    graph: ProgramGraph,
    site: Site,
    op: Op,
    checkpoint_id: str,
    bound: Array,
    theirs: Array,
    oracle: OracleWeights,
    dtype: str,
) -> Finding | None:
    mine = np.asarray(bound, np.float64)
    other = np.asarray(theirs, np.float64)
    limit = LIMIT.get(dtype, 1e-6)
    added = float(op.attributes.get("offset") or 0)
    if mine.size == other.size and _near(mine.ravel() + added, other.ravel() + added, limit):
        return None
    kind, text = _explain(mine, other, oracle, checkpoint_id, limit)
    return Finding(
        failure_class=kind,
        checkpoint_id=checkpoint_id,
        op=op.id,
        operator=op.operator,
        kernel_id=op.kernel.kernel_id,
        source=str(op.span),
        because=(
            f"`{graph.step_key(site.step)}.{site.edge}` differs from the oracle's own weight, "
            "before any activation is computed",
            text,
        ),
    )


def _near(left: Array, right: Array, limit: float) -> bool:
    if left.shape != right.shape:
        return False
    scale = float(np.sqrt(np.mean(np.square(right)))) or 1.0
    with np.errstate(all="ignore"):
        return bool(np.all(np.abs(left - right) <= limit * (np.abs(right) + scale)))


def _explain(
    mine: Array, other: Array, oracle: OracleWeights, checkpoint_id: str, limit: float
) -> tuple[str, str]:
    """Return the class, and in words what turns the one weight into the other."""
    binding = "WEIGHT_BINDING_MISMATCH"
    for (where, operand), array in oracle.items():
        if array.size != mine.size:
            continue
        flat = np.asarray(array, np.float64).ravel()
        if _near(mine.ravel(), flat, limit):
            return binding, f"it holds the oracle's `{operand}` of `{where}`"
        if where != checkpoint_id and _near(other.ravel(), flat, limit):
            return binding, f"the oracle ties it to its `{operand}` of `{where}`"
    if mine.size != other.size:
        return binding, f"it has {mine.size} elements, the oracle's has {other.size}"
    rows = other.shape[0] if other.ndim else 1
    if other.ndim >= 2:
        matrix, target = mine.reshape(rows, -1), other.reshape(rows, -1)
        if _near(mine.reshape(target.shape[::-1]).T, target, limit):
            return binding, "it is the oracle's transposed"
        found = _permuted(matrix, target, limit)
        if found is not None:
            return binding, f"its rows are the oracle's in another order: {found}"
        found = _permuted(matrix.T, target.T, limit)
        if found is not None:
            return binding, f"its columns are the oracle's in another order: {found}"
    elif _near(np.sort(mine.ravel()), np.sort(other.ravel()), limit):
        return binding, "its elements are the oracle's in another order"
    return "WEIGHT_VALUE_DIVERGENCE", _values(mine.ravel(), other.ravel(), limit)


def _permuted(matrix: Array, target: Array, limit: float) -> str | None:
    """Return the first rows of the order that turns one matrix into the other, if one does."""
    if matrix.shape != target.shape:
        return None
    left, right = np.lexsort(matrix.T[:4]), np.lexsort(target.T[:4])
    if not _near(matrix[left], target[right], limit):
        return None
    order = np.empty(len(left), int)
    order[left] = right
    return f"rows 0, 1, 2, 3 are its {', '.join(map(str, order[:4]))}"


def _values(mine: Array, other: Array, limit: float) -> str:
    broken = int((~np.isfinite(mine)).sum() - (~np.isfinite(other)).sum())
    if broken > 0:
        return f"{broken} of its {mine.size} elements are not finite"
    gap = mine - other
    offset = float(np.median(gap))
    if abs(offset) > limit and _near(mine - offset, other, limit):
        return f"it is the oracle's plus {offset:.6g}"
    square = float(np.dot(other, other))
    factor = float(np.dot(mine, other)) / square if square else 0.0
    if factor and _near(mine / factor, other, limit):
        return f"it is {factor:.6g} times the oracle's"
    scale = float(np.sqrt(np.mean(np.square(other)))) or 1.0
    wrong = np.abs(gap) > limit * (np.abs(other) + scale)
    at = int(np.argmax(np.abs(gap)))
    return (
        f"{int(wrong.sum())} of {mine.size} elements differ; the worst is element {at}: "
        f"{mine[at]:.6g} and {other[at]:.6g}"
    )
