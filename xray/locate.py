"""Localisation: the first op that, on the oracle's inputs, does not give the oracle's output.

Sparse captures bound the first failing block; only its edges are captured then (XRAY-17, XRAY-58).
Inside it every op is judged alone, in execution order, so that no monotonicity is assumed and a
small cause before a large effect is still found.
"""

import msgspec
import numpy as np

from cke.schemas.diagnosis import Counterfactual
from cke.schemas.graph_ir import Op
from cke.xray.candidates import OFFSETS
from cke.xray.changes import described
from cke.xray.classes import Owner
from cke.xray.confirm import confirm
from cke.xray.diff import OVER, status_of
from cke.xray.exports import axes_exchanged, export_is_wrong
from cke.xray.finding import Finding
from cke.xray.graph import ProgramGraph, Site
from cke.xray.local import Bench, Judged, judge, local_gate
from cke.xray.metrics import compare, error_text
from cke.xray.replay import DTYPES, KernelReplayer

POSITIONS = ("rope",)


def first_fault(bench: Bench, segment: int, step: int) -> Finding | None:
    """Return the finding about the first op of a step that is locally wrong in a segment."""
    graph = bench.graph(segment)
    for op in graph.function(step).ops:
        for edge in op.results:
            site = Site(step, edge.name)
            judged = judge(bench, segment, site)
            if judged is not None and not judged.clean:
                return explain(bench, judged)
    return None


def explain(bench: Bench, judged: Judged) -> Finding:
    """Return the class and owner of an op that is locally wrong."""
    if judged.replay.says in ("kernel", "not_finite"):
        return _kernel(bench, judged)
    if export_is_wrong(bench, judged):
        return msgspec.structs.replace(
            _base(bench, judged),
            failure_class="DIAGNOSTIC_EXPORT_MAPPING",
            owner="reference_adapter",
            because=(
                "the exported value is not what the oracle went on with: what reads it gives the "
                "oracle's own values on the definition's result, and not on the export",
            ),
        )
    exchanged = axes_exchanged(bench, judged)
    if exchanged is not None:
        return msgspec.structs.replace(
            _base(bench, judged),
            failure_class="DIAGNOSTIC_EXPORT_MAPPING",
            owner="reference_adapter",
            because=(f"the oracle's export agrees with its axes read as {' '.join(exchanged)}",),
        )
    outcome = confirm(bench, judged)
    base = _base(bench, judged)
    found = outcome.confirmed
    if found is None:
        several = tuple(item for item, _, _ in outcome.closing)
        return msgspec.structs.replace(
            base,
            failure_class=None,
            because=(
                *base.because,
                f"{outcome.tried} single changes were replayed; "
                + (
                    f"{len(several)} different ones close the gap"
                    if several
                    else "none closes the gap"
                ),
            ),
            also_closing=several,
            tried=outcome.tried,
            question=_question(judged, several),
        )
    counterfactual, op, step = found
    if counterfactual.kind == "position" and counterfactual.new in OFFSETS:
        return _offset(base, counterfactual, outcome.tried)
    holds = any(op.weights) or op.operator.startswith("expert")
    if counterfactual.kind == "insertion" and holds and not bench.weights_compared:
        return msgspec.structs.replace(
            base,
            because=(
                *base.because,
                f"with {described(counterfactual)} the edge agrees, and a weight of `{op.id}` that "
                "differs would do the same",
            ),
            also_closing=(counterfactual,),
            tried=outcome.tried,
            question=f"whether `{op.id}` holds the oracle's own weights, which a live oracle shows",
        )
    name, owner = _class_of(counterfactual, op)
    graph = bench.graph(judged.segment)
    return msgspec.structs.replace(
        base,
        failure_class=name,
        owner=owner,
        op=op.id,
        operator=op.operator,
        source=str(op.span),
        kernel_id=op.kernel.kernel_id,
        because=(
            *base.because,
            f"with {described(counterfactual)} the edge agrees: relative RMSE "
            f"{counterfactual.before:.3g} becomes {counterfactual.after:.3g}",
            *_inner(graph, judged, op, step),
            *(f"the same function on these inputs: {described(item)}" for item in outcome.same),
        ),
        confirmed_by=counterfactual,
        also_closing=outcome.same,
        tried=outcome.tried,
    )


def _offset(base: Finding, found: Counterfactual, tried: int) -> Finding:
    """Return the question that one offset of all positions leaves: the circuit may want it."""
    return msgspec.structs.replace(
        base,
        because=(*base.because, f"with positions {found.new} than stated the edge agrees"),
        also_closing=(found,),
        tried=tried,
        question="whether the oracle was fed other positions than it states, or the circuit lacks "
        "an offset: a second oracle tells",
    )


def _inner(graph: ProgramGraph, judged: Judged, op: Op, step: int) -> tuple[str, ...]:
    if op.id == judged.op.id:
        return ()
    return (f"the oracle does not show what `{op.id}` gives; the edge is the first that shows it",)


def _class_of(item: Counterfactual, op: Op) -> tuple[str, Owner]:
    if item.kind == "position":
        return "DIAGNOSTIC_EXPORT_MAPPING", "reference_adapter"
    if item.kind == "operand":
        return "CIRCUIT_PRODUCER_MISMATCH", "circuit"
    if item.kind == "weight":
        return "WEIGHT_BINDING_MISMATCH", "weights"
    if item.what == "bias" and item.kind == "insertion":
        return "WEIGHT_BINDING_MISMATCH", "weights"
    if op.operator in POSITIONS and item.kind == "operator":
        return "CIRCUIT_PRODUCER_MISMATCH", "circuit"
    if op.operator in POSITIONS:
        return "POSITION_CONTRACT_MISMATCH", "circuit"
    return "CIRCUIT_SEMANTICS_DIVERGENCE", "circuit"


def _question(judged: Judged, several: tuple[Counterfactual, ...]) -> str:
    if several:
        return "which of the changes that close the gap holds on longer and further inputs"
    return (
        f"what `{judged.op.operator}` should compute at `{judged.op.span}`: the kernel follows "
        "its definition, and a second oracle would say whether the first is right"
    )


def _base(bench: Bench, judged: Judged) -> Finding:
    graph = bench.graph(judged.segment)
    replay = judged.replay
    return Finding(
        failure_class=None,
        because=(
            "on the oracle's own inputs the kernel and the float64 definition agree "
            f"(relative RMSE {error_text(replay.kernel_against_reference)}), and the oracle's "
            f"output is another ({error_text(replay.reference_against_oracle)})",
        ),
        checkpoint_id=judged.record.checkpoint_id,
        role=judged.record.role,
        segment=judged.segment,
        op=judged.op.id,
        operator=judged.op.operator,
        kernel_id=graph.call(judged.site).kernel_id,
        source=str(judged.op.span),
        metrics=replay.kernel_against_oracle,
        gate=replay.gate,
        replay=replay,
    )


def _kernel(bench: Bench, judged: Judged) -> Finding:
    """Return the finding about a kernel: which one of the ops behind the edge it is."""
    graph = bench.graph(judged.segment)
    step, op = _guilty(bench, judged)
    call = graph.call(Site(step, op.results[0].name))
    base = _base(bench, judged)
    name = "KERNEL_IMPLEMENTATION_DIVERGENCE"
    narrow = _narrow(judged)
    if narrow is not None:
        return msgspec.structs.replace(
            base,
            failure_class="STORAGE_CONTRACT_MISMATCH",
            owner="kernel_map",
            op=op.id,
            operator=op.operator,
            kernel_id=call.kernel_id,
            source=str(op.span),
            because=(
                f"every value of kernel `{call.kernel_id}` is a {narrow} value, and the definition "
                f"rounded to {narrow} gives the same: the kernel stores less than its contract",
            ),
        )
    if judged.replay.says == "not_finite":
        name = "NONFINITE_OUTPUT"
    elif op.operator == "sdpa":
        name = "ATTENTION_ARITHMETIC_DIVERGENCE"
    return msgspec.structs.replace(
        base,
        failure_class=name,
        owner="kernel",
        op=op.id,
        operator=op.operator,
        kernel_id=call.kernel_id,
        source=str(op.span),
        because=(
            f"on the oracle's own inputs kernel `{call.kernel_id}` is off its operator's float64 "
            f"definition (relative RMSE {error_text(judged.replay.kernel_against_reference)}); the "
            "definition against the oracle is "
            f"{error_text(judged.replay.reference_against_oracle)}",
        ),
    )


def _narrow(judged: Judged) -> str | None:
    """Return the narrower dtype in which a kernel stored its result, if that is all it did."""
    made = judged.kernel
    if made.dtype != np.float32:
        return None
    for name in ("bf16", "f16"):
        narrow = DTYPES[name]
        if not (made.astype(narrow).astype(np.float32) == made).all():
            continue
        expected = judged.reference.astype(narrow).astype(np.float64)
        step = 2.0 ** (-7 if name == "bf16" else -10)
        if (np.abs(made - expected) <= step * np.abs(expected) + 1e-30).all():
            return name
    return None


def _guilty(bench: Bench, judged: Judged) -> tuple[int, Op]:
    """Return the first op of the cone whose kernel is off its definition on the same inputs."""
    if len(judged.cone) == 1:
        return judged.cone[0]
    graph = bench.graph(judged.segment)
    reference = bench.reference(judged.segment, judged.site)
    order = graph.order()
    for step, op in sorted(
        judged.cone, key=lambda item: order[Site(item[0], item[1].results[0].name)]
    ):
        site = Site(step, op.results[0].name)
        made = reference.made
        own = {Site(step, edge.name) for edge in op.results}
        given = {at: value for at, value in made.items() if at not in own}
        kernel = KernelReplayer(graph, bench.oracle, bench.weights, judged.segment, given=given)
        for edge in op.results:
            site = Site(step, edge.name)
            if site not in made:
                continue
            result = kernel.result(site)
            gate = local_gate(graph, ((step, op),), result, result)
            if status_of(compare(result, made[site], edge.type.axes, None), gate) in OVER:
                return step, op
    return judged.cone[-1]
