"""One execution: the loop of steps, selection, checkpoints and times, and its artifacts."""

import time
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from cke.artifacts.assemble import (
    build_kv_cache,
    build_manifest,
    build_perf,
    build_prefix,
    build_report,
)
from cke.artifacts.capture import LayerRecorder, StageRecorder
from cke.artifacts.engine import Engine, Execution, RunRequest, Session
from cke.artifacts.refusal import refuse_capture
from cke.artifacts.requests import check_request
from cke.artifacts.selection import select
from cke.artifacts.stages import STAGE_IDS
from cke.artifacts.writing import new_artifact_set_id
from cke.schemas.decode_trace import Decision, DecodeTrace
from cke.schemas.layer_trace import LayerTrace
from cke.schemas.run_report import StopReason

Listener = Callable[[Decision], None]


class Outcome(msgspec.Struct):
    """What a run has given so far."""

    decisions: list[Decision]
    stop: StopReason = "none"
    prefill_ns: int = 0
    step_ns: list[int] = []

    @property
    def tokens(self) -> list[int]:
        """The selected tokens."""
        return [decision.selected_token_id for decision in self.decisions]


class Recorders(msgspec.Struct):
    """What is captured at the checkpoint step; either may be absent."""

    layers: LayerRecorder | None = None
    stages: StageRecorder | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoints that the captured step must keep."""
        assert self.layers is not None, "a step is captured for its layers"
        outputs = tuple(f"layer.{layer}.layer_output" for layer in self.layers.requested)
        if self.stages is None:
            return outputs
        return outputs + tuple(f"layer.{self.stages.layer}.{name}" for name in STAGE_IDS)


def execute(engine: Engine, request: RunRequest, listen: Listener | None = None) -> Execution:
    """Run the request and return its artifacts; `listen` hears every decision as it falls."""
    identity = new_artifact_set_id()
    check_request(engine.facts, request)
    started = time.perf_counter_ns()
    session = engine.start(request.rows, request.batch)
    init_ns = time.perf_counter_ns() - started
    recorders = _recorders(engine, request)
    outcome = _run(engine, request, session, recorders, listen)
    manifest = build_manifest(engine.facts, request)
    report = build_report(
        identity,
        manifest,
        request,
        outcome.decisions,
        outcome.stop,
        engine.facts,
        build_kv_cache(engine.facts, session, request.batch),
        build_perf(engine.facts, request, init_ns, outcome.prefill_ns, outcome.step_ns),
        build_prefix(request),
    )
    trace = DecodeTrace(
        artifact_set_id=identity, manifest=manifest, decode_trace=tuple(outcome.decisions)
    )
    if recorders.layers is None:
        return Execution(report, trace, None, tuple(outcome.step_ns))
    stages = recorders.stages
    if len(recorders.layers.entries) == 0 and recorders.layers.failure is None:
        refuse_capture(f"the run ended before checkpoint step {request.checkpoint_step}")
    layers = LayerTrace(
        artifact_set_id=identity,
        manifest=manifest,
        checkpoint_layout=recorders.layers.layout(),
        layer_trace=tuple(recorders.layers.entries),
        intra_layer_checkpoint_layout=UNSET if stages is None else stages.layout(),
        intra_layer_trace=UNSET if stages is None else tuple(stages.entries),
    )
    return Execution(report, trace, layers, tuple(outcome.step_ns))


def _recorders(engine: Engine, request: RunRequest) -> Recorders:
    step = request.checkpoint_step
    if step is None:
        return Recorders()
    facts = engine.facts
    stages = None
    if request.intra_layer is not None:
        stages = StageRecorder(
            layer=request.intra_layer,
            step=step,
            position=len(request.tokens) + step - 1,
            precision_path=facts.precision_path,
        )
    return Recorders(LayerRecorder(facts.family, facts.total_layers, step), stages)


def _run(
    engine: Engine,
    request: RunRequest,
    session: Session,
    recorders: Recorders,
    listen: Listener | None,
) -> Outcome:
    outcome = Outcome([])
    started = time.perf_counter_ns()
    if len(request.tokens) > 1:
        wanted = recorders.names if request.checkpoint_step == 0 else ()
        session.prefill(request.tokens[:-1], wanted)
        if wanted:
            _observe(session, recorders, 0)
    outcome.prefill_ns = time.perf_counter_ns() - started
    pending = [*request.tokens[-1:], *request.forced]
    step = 0
    while outcome.stop == "none":
        started, step = time.perf_counter_ns(), step + 1
        wanted = recorders.names if step == request.checkpoint_step else ()
        logits = session.decode(pending[0], wanted)
        pending = pending[1:]
        if wanted:
            _observe(session, recorders, step)
        if pending:
            continue
        decision = select(
            logits,
            len(outcome.decisions),
            request.policy,
            engine.facts.suppressed,
            {*request.forced, *outcome.tokens},
        )
        outcome.step_ns.append(time.perf_counter_ns() - started)
        if decision is None:
            outcome.stop = "runtime_error"
            return outcome
        outcome.stop = _stop(request, session, decision, len(outcome.decisions) + 1)
        if outcome.stop != "none":
            decision = msgspec.structs.replace(decision, stop_reason=outcome.stop)
        outcome.decisions.append(decision)
        pending = [decision.selected_token_id]
        if listen is not None:
            listen(decision)
    return outcome


def _stop(request: RunRequest, session: Session, decision: Decision, count: int) -> StopReason:
    if decision.selected_token_id in request.stops:
        return "model_eos"
    if count >= request.generate:
        return "decode_limit"
    if session.used_tokens >= request.rows:
        return "context_limit"
    return "none"


def _observe(session: Session, recorders: Recorders, step: int) -> None:
    assert recorders.layers is not None, "a step is captured for its layers"
    for layer in recorders.layers.requested:
        found = session.observe(f"layer.{layer}.layer_output")
        if found is not None:
            recorders.layers.append(layer, found, step=step)
    if recorders.stages is None:
        return
    for name in STAGE_IDS:
        found = session.observe(f"layer.{recorders.stages.layer}.{name}")
        if found is None:
            recorders.stages.miss(name, "unsupported", "the circuit has no such checkpoint")
        else:
            recorders.stages.capture(name, found)
