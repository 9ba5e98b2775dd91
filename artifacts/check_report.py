"""What a run report must say of itself: counts, digests, cache accounting, the forced prefix."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET

from cke.artifacts.fingerprints import POLICIES, token_digest
from cke.artifacts.refusal import refuse_document
from cke.schemas.execution_manifest import ExecutionManifest, Fingerprint
from cke.schemas.run_report import ForcedPrefix, KvCache, RunReport

ELEMENT_SIZES = {"f32": 4, "bf16": 2, "f16": 2}
LIMIT = 1 << 64


def check_run_report(report: RunReport, path: Path) -> None:
    """Refuse a report that contradicts itself."""
    body, runtime = report.report, report.manifest.runtime
    check_manifest(report.manifest, path)
    if len(body.prompt_sequences) != runtime.batch_size:
        _refuse(path, "prompt_sequences", runtime.batch_size, len(body.prompt_sequences))
    for index, sequence in enumerate(body.prompt_sequences):
        if sequence.token_id_digest.size_bytes != 8 * sequence.token_count:
            where = f"prompt_sequences[{index}].token_id_digest.size_bytes"
            _refuse(path, where, 8 * sequence.token_count, sequence.token_id_digest.size_bytes)
    _check_tokens(
        path,
        "selected",
        body.selected_token_ids,
        body.selected_token_count,
        body.selected_token_digest,
    )
    _check_tokens(
        path,
        "emitted",
        body.emitted_token_ids,
        body.emitted_token_count,
        body.emitted_token_digest,
    )
    if (body.execution_status == "ok") != (body.status_code == 0):
        refuse_document(path, "$.report.status_code", "expected 0 if and only if the status is ok")
    if (body.perf is not UNSET) != runtime.perf_enabled:
        refuse_document(path, "$.report.perf", "expected `perf` if and only if perf is enabled")
    if body.kv_cache is not UNSET:
        check_kv_cache(body.kv_cache, runtime.batch_size, path)
    if report.forced_prefix is not UNSET:
        _check_prefix(report.forced_prefix, report, path)


def check_manifest(manifest: ExecutionManifest, path: Path) -> None:
    """Refuse a capture profile that is bound in part."""
    runtime = manifest.runtime
    bound = (
        runtime.intra_layer_checkpoints_enabled is not UNSET,
        runtime.intra_layer_target_layer is not UNSET,
        runtime.diagnostic_capture_profile is not UNSET,
    )
    if any(bound) and not all(bound):
        refuse_document(path, "$.manifest.runtime", "expected all three intra-layer fields or none")
    if any(bound) and not runtime.layer_checkpoints_enabled:
        refuse_document(
            path, "$.manifest.runtime", "expected layer checkpoints with the intra-layer capture"
        )


def _check_tokens(
    path: Path, name: str, ids: Sequence[int], count: int, digest: Fingerprint
) -> None:
    if len(ids) != count:
        _refuse(path, f"{name}_token_count", len(ids), count)
    expected = token_digest(ids)
    if digest != expected:
        _refuse(path, f"{name}_token_digest", expected.hex, digest.hex)


def kv_bytes_per_token(cache: KvCache) -> int:
    """Return the bytes that one position takes in all layers and rows."""
    shape = cache.shape
    rows = shape.layer_count * shape.batch_size * 2
    return rows * shape.kv_head_count * shape.head_dim * shape.element_size


def check_kv_cache(cache: KvCache, batch_size: int, path: Path) -> None:
    """Refuse accounting that is not that of its shape."""
    per_token = kv_bytes_per_token(cache)
    rows = (
        ("shape.batch_size", batch_size, cache.shape.batch_size),
        ("shape.element_size", ELEMENT_SIZES[cache.storage_dtype], cache.shape.element_size),
        ("bytes_per_token", per_token, cache.bytes_per_token),
        ("allocated_bytes", per_token * cache.max_tokens, cache.allocated_bytes),
        ("used_bytes", per_token * cache.used_tokens, cache.used_bytes),
    )
    for field, expected, got in rows:
        if expected >= LIMIT:
            refuse_document(path, f"$.report.kv_cache.{field}", "expected a product below 2^64")
        if expected != got:
            _refuse(path, f"kv_cache.{field}", expected, got)
    if cache.used_tokens > cache.max_tokens:
        message = f"expected at most {cache.max_tokens}, got {cache.used_tokens}"
        refuse_document(path, "$.report.kv_cache.used_tokens", message)


def _check_prefix(prefix: ForcedPrefix, report: RunReport, path: Path) -> None:
    count = prefix.token_count
    rows = (
        ("prefix_end_exclusive", count, prefix.prefix_end_exclusive),
        ("target_generated_token_step", count, prefix.target_generated_token_step),
        ("runtime_checkpoint_step", count + 1, prefix.runtime_checkpoint_step),
        (
            "prompt_token_count",
            report.report.prompt_sequences[0].token_count,
            prefix.prompt_token_count,
        ),
        ("context_position", prefix.prompt_token_count + count, prefix.context_position),
        (
            "selection_policy_sha256",
            POLICIES[prefix.selection_policy].sha256,
            prefix.selection_policy_sha256,
        ),
    )
    for field, expected, got in rows:
        if expected != got:
            where = f"$.forced_prefix.{field}"
            refuse_document(path, where, f"expected {expected}, got {got}")


def _refuse(path: Path, field: str, expected: object, got: object) -> None:
    refuse_document(path, f"$.report.{field}", f"expected {expected}, got {got}")
