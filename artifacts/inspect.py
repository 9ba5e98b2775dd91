"""One screen of a run report, or of the perf lines of a run's stderr.

Trace kinds are refused by name: showing them is no part of this reader. The cache block and keys
that this reader does not know stay in the payload, and nothing is rendered from them.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from cke.artifacts.lines import PREFIXES
from cke.artifacts.markdown import plain, preview
from cke.artifacts.reading import REPORT_LIMITS, load_run_report
from cke.artifacts.refusal import refuse_document
from cke.schemas.reading import parse_json, read_bytes
from cke.schemas.run_report import Perf, RunReport

TRACE_KINDS = ("decode_trace", "layer_trace", "intra_layer_localization")
FIELD = re.compile(r"(\w+)=(\S+)")
PERF = {"stage": "stages", "summary": "summary", "token": "tokens"}


class Inspected(msgspec.Struct, frozen=True):
    """What a file holds: `payload` as it stands, and the text of one screen."""

    kind: str
    payload: dict[str, Any]
    text: str


def inspect_file(path: Path) -> Inspected:
    """Return what a run report or a perf log holds; anything else is refused."""
    raw = read_bytes(path, REPORT_LIMITS)
    if raw.lstrip()[:1] in (b"{", b"["):
        document = parse_json(raw, path, REPORT_LIMITS)
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind in TRACE_KINDS:
            refuse_document(
                path, "$.kind", f"`cke inspect` shows run reports and perf logs, not a {kind}"
            )
        loaded = load_run_report(document, path)
        return Inspected("run_report", loaded.document, show_report(loaded.value))
    payload = parse_perf_log(raw.decode("utf-8", "replace"))
    if not payload["stages"] and not payload["summary"]:
        refuse_document(path, "$", "expected a run report, or stderr with `lis: perf-` lines")
    return Inspected("perf_log", payload, show_perf_log(payload))


def parse_perf_log(text: str) -> dict[str, list[dict[str, str]]]:
    """Return the fields of the perf lines by subject; every other line is ignored."""
    found: dict[str, list[dict[str, str]]] = {name: [] for name in PERF.values()}
    for line in text.splitlines():
        for prefix, name in PERF.items():
            if line.startswith(PREFIXES[prefix]):
                found[name].append(dict(FIELD.findall(line)))
    return found


def show_report(report: RunReport) -> str:
    """Return outcome, identity, tokens and timing of a report."""
    body, manifest = report.report, report.manifest
    prompts = ", ".join(str(item.token_count) for item in body.prompt_sequences)
    lines = [
        f"status    {body.execution_status}, {body.stop_reason}",
        f"model     {plain(manifest.model.family)} ({plain(manifest.model.format)})",
        f"backend   {plain(manifest.backend.name)}, {manifest.runtime.thread_count} threads",
        f"context   {manifest.runtime.configured_context}, batch {manifest.runtime.batch_size}",
        f"prompt    {prompts} tokens ({manifest.input.mode})",
        f"selected  {body.selected_token_count}: {preview(body.selected_token_ids)}",
        f"emitted   {body.emitted_token_count}: {preview(body.emitted_token_ids)}",
    ]
    if isinstance(body.perf, Perf):
        lines.append(f"ttft      {body.perf.ttft_ms:.3f} ms")
        rate = body.perf.tps_steady
        lines.append(f"steady    {'n/a' if rate is None else f'{rate:.3f}'} tokens/s")
    return "\n".join(lines)


def show_perf_log(payload: dict[str, list[dict[str, str]]]) -> str:
    """Return the stages and the summary of a perf log."""
    lines = [
        f"{plain(item.get('name', '?')):<20} {plain(item.get('ms', '?')):>12} ms"
        for item in payload["stages"]
    ]
    for item in payload["summary"]:
        lines += [f"{plain(name):<20} {plain(value):>12}" for name, value in item.items()]
    return "\n".join(lines)
