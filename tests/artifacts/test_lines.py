"""The stderr lines of a run: those that were asked for, with what the artifacts say."""

from collections import Counter

import msgspec
import pytest

from cke.artifacts.execute import execute
from cke.artifacts.inspect import show_perf_log, show_report
from cke.artifacts.lines import PREFIXES, decision_lines, run_lines
from cke.artifacts.seeded import SeededEngine
from tests.artifacts.documents import PLAIN, REQUEST, run

replace = msgspec.structs.replace
FACTS = SeededEngine().facts


def subjects(request, diagnostics=False, facts=FACTS):
    """How many lines each subject has."""
    lines = run_lines(execute(SeededEngine(), request), facts, diagnostics=diagnostics)
    longest = sorted(PREFIXES.items(), key=lambda item: -len(item[1]))
    names = [next(name for name, text in longest if line.startswith(text)) for line in lines]
    return Counter(names)


@pytest.mark.contract("LIS-83", "LIS-84", "LIS-146", "LIS-147")
def test_lines_are_those_that_were_asked_for():
    assert subjects(PLAIN) == {}
    assert subjects(PLAIN, diagnostics=True) == {
        "backend": 1, "precision": 1, "decision": 8, "candidate": 40, "reasoning": 8, "kv_cache": 1,
    }  # fmt: skip
    assert subjects(replace(PLAIN, perf=True)) == {"stage": 7, "summary": 1}
    per_token = replace(PLAIN, perf=True, perf_per_token=True)
    assert subjects(per_token) == {"stage": 7, "summary": 1, "token": 8}
    assert subjects(REQUEST) == {"checkpoint": 12}


@pytest.mark.contract("LIS-146", "LIS-26")
def test_cache_has_its_numbers_in_one_line_and_none_without_them():
    found = run_lines(run(PLAIN), FACTS, diagnostics=True)
    assert found[-1] == (
        "lis: kv-cache: storage_dtype=f32 max_tokens=11 used_tokens=10 bytes_per_token=384 "
        "allocated_bytes=4224"
    )
    older = replace(run(PLAIN).report.report, kv_cache=msgspec.UNSET)
    bare = replace(run(PLAIN), report=replace(run(PLAIN).report, report=older))
    lines = run_lines(bare, FACTS, diagnostics=True)
    assert lines == found[:-1]


@pytest.mark.contract("LIS-100", "LIS-101")
def test_every_summary_has_a_line_and_every_scale_one_of_its_own():
    assert subjects(REQUEST, facts=replace(FACTS, scales=FACTS.scales[:2])) == {"checkpoint": 8}
    first, second, *_ = run_lines(run(REQUEST), FACTS, diagnostics=False)
    entry = run(REQUEST).layers.layer_trace[0]
    assert first == (
        "lis: layer-checkpoint step=3 phase=decode name=layer.0.output shape=1x1x16 "
        f"min={entry.min} max={entry.max} mean={entry.mean} l2={entry.l2} nan=0 inf=0"
    )
    assert second == (
        f"lis: layer-checkpoint step=3 phase=decode name=layer.0.attn_scale value={FACTS.scales[0]}"
    )


@pytest.mark.contract("LIS-146", "LIS-147")
def test_decision_is_said_with_its_candidates_and_its_reason():
    decision = run(PLAIN).trace.decode_trace[0]
    alone = replace(decision, topk=decision.topk[:1], decision_margin=None)
    token, raw = decision.selected_token_id, decision.raw_score_selected
    adjusted = decision.adjusted_score_selected
    assert decision_lines(alone) == [
        f"lis: generation-diagnostic step=0 phase=first_decode token_id={token} "
        f"raw_score={raw} adjusted_score={adjusted} margin=null",
        f"lis: generation-diagnostic-candidate step=0 rank=0 token_id={token} "
        f"raw_score={raw} adjusted_score={adjusted}",
        "lis: generation-diagnostic-reasoning step=0 suppressed=0 penalized=0 "
        "decision_class=greedy",
    ]


@pytest.mark.contract("LIS-146")
def test_rates_that_a_run_is_too_short_for_are_null():
    request = replace(PLAIN, generate=1, perf=True, perf_tag="short")
    execution = execute(SeededEngine(), request)
    summary = run_lines(execution, FACTS, diagnostics=False)[-1]
    perf = execution.report.report.perf
    assert summary == (
        "lis: perf-summary tag=short threads=1 prompt_tokens=3 generated_tokens=1 "
        f"ttft_ms={round(perf.ttft_ms, 3)} itl_ms=null tps_steady=null "
        f"tps_end_to_end={round(perf.tps_end_to_end, 3)}"
    )
    assert "steady    n/a tokens/s" in show_report(execution.report)
    assert "ttft" not in show_report(run(PLAIN).report)
    long = execute(SeededEngine(), replace(PLAIN, perf=True)).report
    assert f"steady    {long.report.perf.tps_steady:.3f} tokens/s" in show_report(long)
    assert f"ttft      {long.report.perf.ttft_ms:.3f} ms" in show_report(long)


@pytest.mark.contract("LIS-143")
def test_perf_log_shows_stages_and_summary_one_a_line():
    payload = {"stages": [{"name": "prefill", "ms": "1.5"}, {}], "summary": [{"tag": "a"}]}
    assert [line.split() for line in show_perf_log(payload).splitlines()] == [
        ["prefill", "1.5", "ms"],
        ["?", "?", "ms"],
        ["tag", "a"],
    ]
