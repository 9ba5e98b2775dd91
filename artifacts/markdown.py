"""The Markdown companion of a run report, from its struct alone; sections by reviewer priority."""

import re
from collections.abc import Sequence

from cke.schemas.execution_manifest import Fingerprint
from cke.schemas.run_report import KvCache, Perf, RunReport

PREVIEW = 16
"""Token ids that are shown; the rest is a count."""

QUOTE = (
    "> This Markdown report is a human-readable companion. "
    "The JSON artifact remains the canonical machine-readable source of truth."
)
STATUS = {"ok": "OK", "error": "error"}
NOTES = [
    "- The JSON artifact is canonical.",
    "- Token IDs and digests are retained.",
    "- Raw text and absolute paths are omitted by default.",
]


def render_markdown(report: RunReport) -> str:
    """Return the companion report, without a newline at its end."""
    sections = [
        ("Outcome", _outcome(report)),
        ("Identity", _identity(report)),
        ("Retention Policy", _retention(report)),
        ("Runtime", _runtime(report)),
        ("KV Cache", _kv_cache(report)),
        ("Token Accounting", _tokens(report)),
        ("Performance Summary", _performance(report)),
        ("Fingerprints", _fingerprints(report)),
        ("Notes", NOTES),
    ]
    lines = ["# LIS Execution Report", "", QUOTE]
    for title, body in sections:
        if body:
            lines += ["", f"## {title}", "", *body]
    return "\n".join(lines)


def plain(name: str) -> str:
    """Return a name with nothing that Markdown could read as markup."""
    return re.sub(r"[^A-Za-z0-9_.+:/\-]", "?", name)


def preview(ids: Sequence[int]) -> str:
    """Return at most 16 ids in backticks, and how many more there are."""
    if not ids:
        return "(none)"
    shown = ", ".join(map(str, ids[:PREVIEW]))
    return f"`{shown}`" + (f" ({len(ids) - PREVIEW} more)" if len(ids) > PREVIEW else "")


def _outcome(report: RunReport) -> list[str]:
    body = report.report
    return [f"- Status: {STATUS[body.execution_status]}", f"- Stop reason: {body.stop_reason}"]


def _identity(report: RunReport) -> list[str]:
    manifest = report.manifest
    return [
        f"- Schema: `{plain(report.schema)}`",
        f"- Kind: `{plain(report.kind)}`",
        f"- Model format: {plain(manifest.model.format)}",
        f"- Model family: {plain(manifest.model.family)}",
        f"- Backend: {plain(manifest.backend.name)}",
    ]


def _retention(report: RunReport) -> list[str]:
    policy = report.manifest.retention_policy
    return [
        f"- Absolute paths: {policy.absolute_paths}",
        f"- Raw prompt text: {policy.raw_prompt_text}",
        f"- Generated text: {policy.generated_text}",
    ]


def _switch(on: bool) -> str:
    return "enabled" if on else "disabled"


def _runtime(report: RunReport) -> list[str]:
    runtime = report.manifest.runtime
    return [
        f"- Configured context: {runtime.configured_context}",
        f"- Batch size: {runtime.batch_size}",
        f"- Generation limit: {runtime.generation_limit}",
        f"- Thread count: {runtime.thread_count}",
        f"- Diagnostics: {_switch(runtime.diagnostics_enabled)}",
        f"- Perf: {_switch(runtime.perf_enabled)}",
    ]


def _kv_cache(report: RunReport) -> list[str]:
    cache = report.report.kv_cache
    if not isinstance(cache, KvCache):
        return []
    flags = (
        ("eviction-free", cache.policy.eviction_free),
        ("monotonic growth", cache.policy.monotonic_growth),
        ("paging", cache.policy.paging),
        ("offload", cache.policy.offload),
        ("sliding window", cache.policy.sliding_window),
        ("prefix reuse", cache.policy.prefix_reuse),
    )
    shape = cache.shape
    return [
        f"- Scope: {cache.scope}",
        "- Policy: " + ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in flags),
        f"- Storage dtype: {cache.storage_dtype}",
        f"- Max tokens: {cache.max_tokens}",
        f"- Used tokens: {cache.used_tokens}",
        f"- Bytes per token: {cache.bytes_per_token}",
        f"- Allocated bytes: {cache.allocated_bytes}",
        f"- Used bytes: {cache.used_bytes}",
        f"- Shape: {shape.layer_count} layer(s), batch {shape.batch_size}, "
        f"{shape.kv_head_count} KV head(s), head dim {shape.head_dim}, "
        f"element size {shape.element_size}",
    ]


def _digest(fingerprint: Fingerprint) -> str:
    return f"`{fingerprint.algorithm}:{fingerprint.hex}`"


def _tokens(report: RunReport) -> list[str]:
    body = report.report
    lines = [f"- Prompt sequences: {len(body.prompt_sequences)}"]
    lines += [
        f"  - seq {number}: {item.token_count} token(s), digest {_digest(item.token_id_digest)}"
        for number, item in enumerate(body.prompt_sequences, 1)
    ]
    for name, count, digest, ids in (
        (
            "Selected",
            body.selected_token_count,
            body.selected_token_digest,
            body.selected_token_ids,
        ),
        ("Emitted", body.emitted_token_count, body.emitted_token_digest, body.emitted_token_ids),
    ):
        lines += [
            f"- {name} tokens: {count}",
            f"  - digest: {_digest(digest)}",
            f"  - IDs: {preview(ids)}",
        ]
    return lines


def _performance(report: RunReport) -> list[str]:
    perf = report.report.perf
    if not isinstance(perf, Perf):
        return []
    lines = [
        f"- TTFT: {perf.ttft_ms:.3f} ms",
        f"- Mean ITL: {_measured(perf.itl_ms)} ms",
        f"- Steady-state TPS: {_measured(perf.tps_steady)}",
        f"- End-to-end TPS: {_measured(perf.tps_end_to_end)}",
        "",
        "| stage | ms | tokens |",
        "|---|---|---|",
    ]
    for name in perf.stages.__struct_fields__:
        stage = getattr(perf.stages, name)
        lines.append(f"| {name} | {stage.ms:.3f} | {stage.tokens} |")
    return lines


def _measured(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _fingerprints(report: RunReport) -> list[str]:
    manifest = report.manifest
    sized = (
        ("Binary", manifest.binary.fingerprint),
        ("Model", manifest.model.fingerprint),
        ("Config", manifest.config.fingerprint),
        ("Input", manifest.input.fingerprint),
    )
    unsized = (
        ("Runtime", manifest.runtime.fingerprint),
        ("Backend", manifest.backend.fingerprint),
    )
    return [
        *(f"- {name}: {_digest(item)} ({item.size_bytes} bytes)" for name, item in sized),
        *(f"- {name}: {_digest(item)}" for name, item in unsized),
    ]
