"""What no artifact may hold: tensors, texts, paths. Walks any parsed document."""

from pathlib import Path
from typing import Any

from cke.artifacts.refusal import refuse_document

PROHIBITED = frozenset(
    {
        "tensor_payload",
        "tensor_values",
        "values",
        "samples",
        "tensor_samples",
        "prompt",
        "prompt_text",
        "raw_prompt_text",
        "generated_text",
        "absolute_path",
        "absolute_paths",
        "model_path",
        "logits",
        "logits_dump",
        "activations",
        "activation_dump",
        "telemetry",
        "dashboard",
        "perf_summary",
        "forced_prefix_token_ids",
        "forced_tokens",
    }
)
"""Keys that hold payloads, texts or paths; `retention_policy` may name what it omits."""

PAYLOADS_OF_KIND = {
    "run_report": frozenset({"layer_trace", "decode_trace", "intra_layer_trace"}),
    "decode_trace": frozenset({"report", "layer_trace", "intra_layer_trace"}),
    "layer_trace": frozenset({"report", "decode_trace"}),
}


def check_retention(document: Any, path: Path, kind: str) -> None:
    """Refuse a prohibited key anywhere, another kind's payload, or a text that is a path."""
    _walk(document, "$", path)
    for key in PAYLOADS_OF_KIND[kind]:
        for where, holder in (("$", document), ("$.report", document.get("report"))):
            if isinstance(holder, dict) and key in holder:
                refuse_document(path, f"{where}.{key}", f"a {kind} does not hold `{key}`")


def _walk(value: Any, where: str, path: Path) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            inner = f"{where}.{key}"
            if key in PROHIBITED and not where.endswith(".retention_policy"):
                refuse_document(path, inner, f"`{key}` is prohibited in an artifact")
            _walk(item, inner, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{where}[{index}]", path)
    elif isinstance(value, str) and (value.startswith(("/", "\\\\")) or value[1:3] == ":\\"):
        refuse_document(path, where, "expected no absolute path")
