"""The loop of a run: what it asks of its runtime, when it measures, and how it ends."""

import itertools
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from cke.artifacts.assemble import build_perf
from cke.artifacts.execute import execute
from cke.artifacts.reading import load_layer_trace, load_run_report
from cke.artifacts.refusal import ArtifactError
from cke.artifacts.seeded import SeededEngine, SeededSession, observation_of
from cke.artifacts.stages import STAGE_IDS
from tests.artifacts.documents import PATH, PLAIN, REQUEST, run

replace = msgspec.structs.replace
FIELDS = ("ttft_ms", "itl_ms", "tps_steady", "tps_end_to_end")


class Watched(SeededSession):
    """A session that notes what it is asked for, and gives what it is told to."""

    def prefill(self, tokens, capture):
        self._engine.asked.append((tuple(tokens), tuple(capture)))
        super().prefill(tokens, capture)

    def decode(self, token, capture):
        engine = self._engine
        engine.asked.append(((token,), tuple(capture)))
        logits = super().decode(token, capture)
        return logits * np.nan if len(engine.asked) == engine.broken else logits

    def observe(self, checkpoint):
        return self._engine.given.get(checkpoint, super().observe(checkpoint))


class WatchedEngine(SeededEngine):
    """`given` are observations by checkpoint; the call numbered `broken` gives no number."""

    def __init__(self, given=(), broken=None):
        super().__init__()
        self.asked, self.given, self.broken = [], dict(given), broken

    def start(self, context, batch):
        return Watched(self, context)


OUTPUTS = tuple(f"layer.{layer}.layer_output" for layer in range(6))


@pytest.mark.contract("LIS-86", "LIS-119")
def test_step_that_is_captured_is_asked_for_its_checkpoints_and_no_other_is():
    engine = WatchedEngine()
    execute(engine, REQUEST)
    captures = [names for _, names in engine.asked]
    stages = tuple(f"layer.2.{name}" for name in STAGE_IDS)
    assert captures == [(), (), (), OUTPUTS + stages, *[()] * 5]
    engine = WatchedEngine()
    execute(engine, replace(PLAIN, checkpoint_step=0))
    assert engine.asked[0] == ((3, 5), OUTPUTS)
    assert {names for _, names in engine.asked[1:]} == {()}


def test_prompt_of_one_token_has_no_prefill():
    engine = WatchedEngine()
    execute(engine, replace(PLAIN, tokens=(3,), generate=2))
    assert [len(tokens) for tokens, _ in engine.asked] == [1, 1]
    assert engine.asked[0][0] == (3,)


@pytest.mark.contract("LIS-10", "LIS-11", "LIS-12")
def test_run_whose_scores_are_no_numbers_ends_in_an_error():
    report = execute(WatchedEngine(broken=4), PLAIN).report
    found = report.report
    assert (found.execution_status, found.status_code) == ("error", 1)
    assert found.stop_reason == "runtime_error"
    assert found.selected_token_ids == found.emitted_token_ids
    assert found.selected_token_ids == run(PLAIN).report.report.selected_token_ids[:2]
    load_run_report(msgspec.to_builtins(report), PATH)
    whole = run(PLAIN).report.report
    assert (whole.execution_status, whole.status_code) == ("ok", 0)
    assert whole.emitted_token_ids == whole.selected_token_ids


@pytest.mark.contract("LIS-84")
def test_every_decision_is_heard_as_it_falls():
    heard = []
    assert tuple(execute(SeededEngine(), PLAIN, heard.append).trace.decode_trace) == tuple(heard)


@pytest.mark.contract("LIS-92", "LIS-93")
def test_what_a_runtime_does_not_have_is_said_to_be_missing():
    given = {"layer.1.layer_output": None, "layer.2.attention_scores": None}
    trace = execute(WatchedEngine(given), REQUEST).layers
    (layer,) = trace.checkpoint_layout.missing_coordinates
    assert (layer.coordinate, layer.state) == ("layer.1.output", "not_captured")
    (stage,) = trace.intra_layer_checkpoint_layout.missing_coordinates
    assert (stage.coordinate, stage.state) == ("attention_scores", "unsupported")
    assert stage.detail == "the circuit has no such checkpoint"
    load_layer_trace(msgspec.to_builtins(trace), PATH)


@pytest.mark.contract("LIS-105")
def test_capture_that_failed_at_its_first_layer_is_refused_with_its_cause():
    wide = replace(observation_of(np.ones((1, 4), np.float32)), elements=np.ones(4))
    given = dict.fromkeys(OUTPUTS, wide)
    with pytest.raises(ArtifactError, match="observed in fp32, got float64"):
        execute(WatchedEngine(given), REQUEST)


@pytest.mark.contract("LIS-13", "LIS-14")
def test_times_are_those_between_the_calls(monkeypatch):
    ticks = itertools.count(7, 1000)
    clock = SimpleNamespace(perf_counter_ns=lambda: next(ticks))
    monkeypatch.setattr("cke.artifacts.execute.time", clock)
    found = execute(SeededEngine(), replace(PLAIN, perf=True))
    stages = found.report.report.perf.stages
    assert (stages.runtime_init.ns, stages.prefill.ns, stages.first_decode.ns) == (1000,) * 3
    assert (stages.decode_steady_state.ns, stages.decode_steady_state.tokens) == (7000, 7)
    assert found.step_ns == (1000,) * 8


@pytest.mark.contract("LIS-13", "LIS-14")
def test_rates_are_those_of_the_times():
    facts = replace(
        SeededEngine().facts,
        load_ns={"tokenizer_encode": 1_000_000, "model_load": 5_000_000, "tokenizer_load": 3},
    )
    request = replace(PLAIN, perf=True, perf_tag="a")
    found = build_perf(facts, request, 2_000_000, 4_000_000, (8_000_000, 10_000_000, 30_000_000))
    assert tuple(getattr(found, name) for name in FIELDS) == (15.0, 20.0, 50.0, 3e9 / 52_000_000)
    assert (found.tag, found.prompt_tokens, found.generated_tokens) == ("a", 3, 3)
    stages = {
        name: (getattr(found.stages, name).ns, getattr(found.stages, name).tokens)
        for name in found.stages.__struct_fields__
    }
    assert stages == {
        "model_load": (5_000_000, 0),
        "tokenizer_load": (3, 0),
        "tokenizer_encode": (1_000_000, 3),
        "runtime_init": (2_000_000, 0),
        "prefill": (4_000_000, 2),
        "first_decode": (8_000_000, 1),
        "decode_steady_state": (40_000_000, 2),
    }
    single = build_perf(facts, replace(request, tokens=(3,)), 0, 0, (0,))
    assert (single.stages.prefill.tokens, single.tps_end_to_end) == (0, None)
    assert (single.itl_ms, single.tps_steady) == (None, None)


def test_documents_of_a_run_are_those_that_it_has():
    assert set(run(PLAIN).documents()) == {"run_report", "decode_trace"}
    assert set(run(REQUEST).documents()) == {"run_report", "decode_trace", "layer_trace"}
