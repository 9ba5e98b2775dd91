"""Build the manifest, the report and the cache accounting of one execution."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from cke.artifacts.check_report import ELEMENT_SIZES, LIMIT, kv_bytes_per_token
from cke.artifacts.engine import Facts, RunRequest, Session
from cke.artifacts.fingerprints import (
    Hasher,
    backend_fingerprint,
    ids_sha,
    runtime_fingerprint,
    token_digest,
)
from cke.artifacts.refusal import refuse_capture
from cke.schemas.decode_trace import Decision
from cke.schemas.execution_manifest import (
    BackendIdentity,
    ExecutionManifest,
    Fingerprint,
    Identified,
    InputIdentity,
    ModelIdentity,
    Retention,
    RuntimeIdentity,
)
from cke.schemas.run_report import (
    ForcedPrefix,
    KvCache,
    KvShape,
    Perf,
    PromptSequence,
    Report,
    RunReport,
    Stage,
    Stages,
    StopReason,
)

MILLION = 1_000_000


def build_manifest(facts: Facts, request: RunRequest) -> ExecutionManifest:
    """Return the semantic manifest; identity that could not be captured refuses the artifacts."""
    captured = (
        ("binary", facts.binary),
        ("model", facts.model),
        ("config", facts.config),
    )
    for name, fingerprint in captured:
        if fingerprint.size_bytes == 0:
            refuse_capture(f"the {name} identity could not be captured")
    for name, text in (("backend", facts.backend), ("family", facts.family)):
        if not text:
            refuse_capture(f"the {name} name could not be captured")
    blank = Hasher().fingerprint()
    intra = request.intra_layer
    manifest = ExecutionManifest(
        retention_policy=Retention(),
        binary=Identified(fingerprint=facts.binary),
        model=ModelIdentity(
            format=facts.model_format, family=facts.family, fingerprint=facts.model
        ),
        config=Identified(fingerprint=facts.config),
        input=InputIdentity(mode=facts.input_mode, fingerprint=_input(facts, request)),
        runtime=RuntimeIdentity(
            configured_context=request.rows,
            batch_size=request.batch,
            generation_limit=request.generate,
            thread_count=facts.threads,
            layer_checkpoints_enabled=request.checkpoint_step is not None,
            layer_checkpoint_step=request.checkpoint_step or 0,
            intra_layer_checkpoints_enabled=UNSET if intra is None else True,
            intra_layer_target_layer=UNSET if intra is None else intra,
            diagnostic_capture_profile=(UNSET if intra is None else "semantic_layer_and_intra_v1"),
            diagnostics_enabled=request.diagnostics,
            perf_enabled=request.perf,
            perf_per_token_enabled=request.perf_per_token,
            precision_path=facts.precision_path,
            fingerprint=blank,
        ),
        backend=BackendIdentity(
            name=facts.backend, fingerprint=backend_fingerprint(facts.backend, facts.threads)
        ),
    )
    fingerprint = runtime_fingerprint(manifest, request.policy, bool(request.forced))
    runtime = msgspec.structs.replace(manifest.runtime, fingerprint=fingerprint)
    return msgspec.structs.replace(manifest, runtime=runtime)


def _input(facts: Facts, request: RunRequest) -> Fingerprint:
    if facts.input_mode == "tokens":
        return token_digest(request.tokens)
    if facts.tokenizer is None or facts.tokenizer.size_bytes == 0:
        refuse_capture("the tokenizer identity could not be captured")
    return facts.tokenizer


def build_report(
    identity: str,
    manifest: ExecutionManifest,
    request: RunRequest,
    decisions: Sequence[Decision],
    stop: StopReason,
    facts: Facts,
    cache: KvCache,
    perf: Perf | UnsetType,
    prefix: ForcedPrefix | UnsetType,
) -> RunReport:
    """Return the run report; an end token is selected, and not emitted."""
    selected = tuple(decision.selected_token_id for decision in decisions)
    emitted = selected[:-1] if stop == "model_eos" else selected
    failed = stop == "runtime_error"
    prompt = PromptSequence(
        token_count=len(request.tokens), token_id_digest=token_digest(request.tokens)
    )
    return RunReport(
        artifact_set_id=identity,
        forced_prefix=prefix,
        manifest=manifest,
        report=Report(
            execution_status="error" if failed else "ok",
            status_code=1 if failed else 0,
            stop_reason=stop,
            output_mode="text" if request.text else "token_ids",
            prompt_sequences=(prompt,) * request.batch,
            selected_token_count=len(selected),
            selected_token_digest=token_digest(selected),
            selected_token_ids=selected,
            emitted_token_count=len(emitted),
            emitted_token_digest=token_digest(emitted),
            emitted_token_ids=emitted,
            perf=perf,
            kv_cache=cache,
        ),
    )


def used_tokens(lengths: Sequence[int]) -> int:
    """Return the logical populated positions of a static batch: those of its longest row."""
    return max(lengths, default=0)


def build_kv_cache(facts: Facts, session: Session, batch: int) -> KvCache:
    """Return the accounting of the cache that was allocated."""
    kv = facts.kv
    assert kv is not None, "a request for such a state is refused"
    return account_kv_cache(
        KvShape(
            layer_count=kv.layer_count,
            batch_size=batch,
            kv_head_count=kv.kv_head_count,
            head_dim=kv.head_dim,
            element_size=ELEMENT_SIZES[kv.dtype],
        ),
        kv.dtype,
        session.max_tokens,
        session.used_tokens,
    )


def account_kv_cache(shape: KvShape, dtype: str, capacity: int, used: int) -> KvCache:
    """Return the block of a cache with `capacity` positions, `used` of them populated."""
    if any(value <= 0 for value in msgspec.structs.astuple(shape)) or capacity <= 0:
        refuse_capture("a dimension of the KV cache is zero")
    if not 0 <= used <= capacity:
        refuse_capture(f"the KV cache has {capacity} positions, got {used} used")
    block = KvCache(
        storage_dtype=msgspec.convert(dtype, Any),
        max_tokens=capacity,
        used_tokens=used,
        bytes_per_token=1,
        allocated_bytes=1,
        used_bytes=0,
        shape=shape,
    )
    per_token = kv_bytes_per_token(block)
    if per_token * capacity >= LIMIT:
        refuse_capture("the accounting of the KV cache overflows")
    return msgspec.structs.replace(
        block,
        bytes_per_token=per_token,
        allocated_bytes=per_token * capacity,
        used_bytes=per_token * used,
    )


def build_perf(
    facts: Facts, request: RunRequest, init_ns: int, prefill_ns: int, step_ns: Sequence[int]
) -> Perf | UnsetType:
    """Return the bounded timing, absent unless it was asked for."""
    if not request.perf:
        return UNSET
    first, *steady = step_ns
    prompt = len(request.tokens)
    encode = facts.load_ns.get("tokenizer_encode", 0)
    total = prefill_ns + first + sum(steady)
    return Perf(
        tag=request.perf_tag,
        threads=facts.threads,
        prompt_tokens=prompt,
        generated_tokens=len(step_ns),
        ttft_ms=(encode + init_ns + prefill_ns + first) / MILLION,
        itl_ms=sum(steady) / len(steady) / MILLION if steady else None,
        tps_steady=len(steady) * 1e9 / sum(steady) if steady else None,
        tps_end_to_end=len(step_ns) * 1e9 / total if total else None,
        stages=Stages(
            model_load=_stage(facts.load_ns.get("model_load", 0), 0),
            tokenizer_load=_stage(facts.load_ns.get("tokenizer_load", 0), 0),
            tokenizer_encode=_stage(encode, prompt),
            runtime_init=_stage(init_ns, 0),
            prefill=_stage(prefill_ns, max(prompt - 1, 0)),
            first_decode=_stage(first, 1),
            decode_steady_state=_stage(sum(steady), len(steady)),
        ),
    )


def _stage(ns: int, tokens: int) -> Stage:
    return Stage(ns=ns, ms=ns / MILLION, tokens=tokens)


def build_prefix(request: RunRequest) -> ForcedPrefix | UnsetType:
    """Return the applied prefix: counts and hashes are those of what was injected."""
    binding = request.binding
    if binding is None:
        return UNSET
    count, prompt = len(request.forced), len(request.tokens)
    return ForcedPrefix(
        token_count=count,
        token_ids_sha256=ids_sha(request.forced),
        prefix_end_exclusive=count,
        target_generated_token_step=count,
        runtime_checkpoint_step=count + 1,
        prompt_token_count=prompt,
        context_position=prompt + count,
        selection_policy=request.policy.name,
        selection_policy_sha256=request.policy.sha256,
        source_pass0_artifact_sha256=binding.source_pass0_artifact_sha256,
        source_original_run_report_sha256=binding.source_original_run_report_sha256,
        source_pass1_artifact_sha256=binding.source_pass1_artifact_sha256,
        source_localization_ref_sha256=binding.source_localization_ref_sha256,
    )
