"""The run report: what one execution was, and which tokens it gave."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cke.schemas.execution_manifest import (
    SCHEMA,
    ArtifactSetId,
    Exact,
    ExecutionManifest,
    Fingerprint,
    Name,
    Natural,
    Positive,
    Schema,
    Sha256,
    Wire,
)

MAX_PREFIX = 64
StopReason = Literal[
    "none", "model_eos", "structural_control", "decode_limit", "context_limit", "runtime_error"
]
PolicyName = Literal["raw_greedy", "lis_policy_modified_greedy_v1"]
PrefixMode = Literal["injected_selected_token_prefix_v1"]
Milliseconds = Annotated[float, Meta(ge=0)]


class ForcedPrefix(Exact, frozen=True, kw_only=True):
    """What was injected before the selected token, bound to its sources: exactly 16 fields."""

    mode: PrefixMode = "injected_selected_token_prefix_v1"
    applied: Literal[True] = True
    token_count: Annotated[int, Meta(ge=1, le=MAX_PREFIX)]
    token_ids_sha256: Sha256
    prefix_start: Annotated[int, Meta(ge=0, le=0)] = 0
    prefix_end_exclusive: Positive
    target_generated_token_step: Positive
    runtime_checkpoint_step: Positive
    prompt_token_count: Positive
    context_position: Positive
    selection_policy: PolicyName
    selection_policy_sha256: Sha256
    source_pass0_artifact_sha256: Sha256
    source_original_run_report_sha256: Sha256
    source_pass1_artifact_sha256: Sha256
    source_localization_ref_sha256: Sha256


class PrefixBinding(Exact, frozen=True, kw_only=True):
    """The source-binding input of a run with a forced prefix."""

    mode: PrefixMode
    token_count: Annotated[int, Meta(ge=1, le=MAX_PREFIX)]
    token_ids_sha256: Sha256
    prompt_token_count: Positive
    selection_policy: PolicyName
    selection_policy_sha256: Sha256
    source_pass0_artifact_sha256: Sha256
    source_original_run_report_sha256: Sha256
    source_pass1_artifact_sha256: Sha256
    source_localization_ref_sha256: Sha256


class PromptSequence(Wire, frozen=True, kw_only=True):
    """One prompt, as a count and a digest."""

    token_count: Natural
    token_id_digest: Fingerprint


class Stage(Wire, frozen=True, kw_only=True):
    """The time of one stage."""

    ns: Natural
    ms: Milliseconds
    tokens: Natural


class Stages(Wire, frozen=True, kw_only=True):
    """The stages of a run, in order."""

    model_load: Stage
    tokenizer_load: Stage
    tokenizer_encode: Stage
    runtime_init: Stage
    prefill: Stage
    first_decode: Stage
    decode_steady_state: Stage


class Perf(Wire, frozen=True, kw_only=True):
    """Bounded timing; null where a run has too few tokens for a rate."""

    tag: Name
    threads: Positive
    prompt_tokens: Natural
    generated_tokens: Natural
    ttft_ms: Milliseconds
    itl_ms: Milliseconds | None
    tps_steady: Milliseconds | None
    tps_end_to_end: Milliseconds | None
    stages: Stages


class KvPolicy(Exact, frozen=True, kw_only=True):
    """The one cache policy that the block can describe."""

    eviction_free: Literal[True] = True
    monotonic_growth: Literal[True] = True
    paging: Literal[False] = False
    offload: Literal[False] = False
    sliding_window: Literal[False] = False
    prefix_reuse: Literal[False] = False


class KvShape(Wire, frozen=True, kw_only=True):
    """The dimensions of the cache."""

    layer_count: Positive
    batch_size: Positive
    kv_head_count: Positive
    head_dim: Positive
    element_size: Positive


class KvCache(Wire, frozen=True, kw_only=True):
    """Structural accounting of the cache that was allocated."""

    scope: Literal["run_local"] = "run_local"
    policy: KvPolicy = KvPolicy()
    storage_dtype: Literal["f32", "bf16", "f16"]
    max_tokens: Positive
    used_tokens: Natural
    bytes_per_token: Positive
    allocated_bytes: Positive
    used_bytes: Natural
    shape: KvShape


class Report(Wire, frozen=True, kw_only=True):
    """Outcome and tokens; `perf` only when asked for, `kv_cache` absent in older reports."""

    execution_status: Literal["ok", "error"]
    status_code: Natural
    stop_reason: StopReason
    output_mode: Literal["token_ids", "text"]
    prompt_sequences: tuple[PromptSequence, ...]
    selected_token_count: Natural
    selected_token_digest: Fingerprint
    selected_token_ids: tuple[Natural, ...]
    emitted_token_count: Natural
    emitted_token_digest: Fingerprint
    emitted_token_ids: tuple[Natural, ...]
    perf: Perf | UnsetType = UNSET
    kv_cache: KvCache | UnsetType = UNSET


class RunReport(Wire, frozen=True, kw_only=True):
    """The document of `--report-json`."""

    schema: Schema = SCHEMA
    kind: Literal["run_report"] = "run_report"
    artifact_set_id: ArtifactSetId | UnsetType = UNSET
    forced_prefix: ForcedPrefix | UnsetType = UNSET
    manifest: ExecutionManifest
    report: Report
