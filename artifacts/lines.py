"""The stderr lines of a run: one prefix for each subject, and key=value fields after it."""

from collections.abc import Iterator, Sequence

from cke.artifacts.engine import Execution, Facts
from cke.schemas.decode_trace import Decision
from cke.schemas.run_report import KvCache, Perf

PREFIXES = {
    "backend": "lis: simd backend=",
    "precision": "lis: precision path=",
    "kv_cache": "lis: kv-cache: ",
    "decision": "lis: generation-diagnostic ",
    "candidate": "lis: generation-diagnostic-candidate ",
    "reasoning": "lis: generation-diagnostic-reasoning ",
    "checkpoint": "lis: layer-checkpoint ",
    "stage": "lis: perf-stage ",
    "summary": "lis: perf-summary ",
    "token": "lis: perf-per-token ",
}
"""Every prefix; existing ones never change, new subjects get lines of their own."""


def run_lines(execution: Execution, facts: Facts, *, diagnostics: bool) -> list[str]:
    """Return every line of a run, in order."""
    report = execution.report
    lines: list[str] = []
    if diagnostics:
        lines += [PREFIXES["backend"] + facts.backend, PREFIXES["precision"] + facts.precision_path]
        for decision in execution.trace.decode_trace:
            lines += decision_lines(decision)
        if isinstance(report.report.kv_cache, KvCache):
            lines.append(_kv_line(report.report.kv_cache))
    lines += checkpoint_lines(execution, facts.scales)
    if isinstance(report.report.perf, Perf):
        lines += perf_lines(report.report.perf)
        if report.manifest.runtime.perf_per_token_enabled:
            lines += [
                _line("token", index=index, ns=ns) for index, ns in enumerate(execution.step_ns)
            ]
    return lines


def decision_lines(decision: Decision) -> list[str]:
    """Return the lines of one decision: itself, its candidates, and why."""
    where = {"step": decision.step, "phase": decision.phase}
    lines = [
        _line(
            "decision",
            **where,
            token_id=decision.selected_token_id,
            raw_score=decision.raw_score_selected,
            adjusted_score=decision.adjusted_score_selected,
            margin=decision.decision_margin,
        )
    ]
    lines += [
        _line(
            "candidate",
            step=decision.step,
            rank=rank,
            token_id=choice.token_id,
            raw_score=choice.raw_score,
            adjusted_score=choice.adjusted_score,
        )
        for rank, choice in enumerate(decision.topk)
    ]
    reason = {
        "suppressed": decision.suppressed_token_count,
        "penalized": decision.penalized_token_count,
        "decision_class": decision.decision_class,
    }
    return [*lines, _line("reasoning", step=decision.step, **reason)]


def checkpoint_lines(execution: Execution, scales: Sequence[float]) -> Iterator[str]:
    """Return a line with statistics for each entry, and one with a value for each scale."""
    if execution.layers is None:
        return
    for entry in execution.layers.layer_trace:
        where = {"step": entry.step, "phase": entry.phase}
        yield _line(
            "checkpoint",
            **where,
            name=entry.name,
            shape="x".join(map(str, entry.shape)),
            min=entry.min,
            max=entry.max,
            mean=entry.mean,
            l2=entry.l2,
            nan=entry.nan,
            inf=entry.inf,
        )
        layer = int(entry.name.split(".")[1])
        if layer < len(scales):
            name = f"layer.{layer}.attn_scale"
            yield _line("checkpoint", **where, name=name, value=scales[layer])


def perf_lines(perf: Perf) -> list[str]:
    """Return a line for each stage, and the summary."""
    lines = []
    for name in perf.stages.__struct_fields__:
        stage = getattr(perf.stages, name)
        lines.append(
            _line("stage", name=name, ns=stage.ns, ms=round(stage.ms, 3), tokens=stage.tokens)
        )
    summary = {
        name: getattr(perf, name) for name in ("ttft_ms", "itl_ms", "tps_steady", "tps_end_to_end")
    }
    counts = {
        name: getattr(perf, name) for name in ("threads", "prompt_tokens", "generated_tokens")
    }
    rounded = {name: None if item is None else round(item, 3) for name, item in summary.items()}
    return [*lines, _line("summary", tag=perf.tag, **counts, **rounded)]


def _kv_line(cache: KvCache) -> str:
    fields = ("storage_dtype", "max_tokens", "used_tokens", "bytes_per_token", "allocated_bytes")
    return _line("kv_cache", **{name: getattr(cache, name) for name in fields})


def _line(prefix: str, **fields: object) -> str:
    shown = (f"{name}={'null' if item is None else item}" for name, item in fields.items())
    return PREFIXES[prefix] + " ".join(shown)
