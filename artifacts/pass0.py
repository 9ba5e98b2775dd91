"""Pass 0, the preflight: what keeps two runs from being compared, or limits how far.

`REASONS` is the one table of codes; rules are functions of the two reports.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import UNSET

from cke.artifacts.fingerprints import policy_of, token_digest
from cke.artifacts.reading import Loaded
from cke.schemas.differential import (
    Calibration,
    Domain,
    Eligibility,
    Mode,
    PromptIdentity,
    Reason,
    Severity,
    Strength,
    Submode,
    Verdict,
)
from cke.schemas.run_report import KvCache, RunReport

REASONS: dict[str, tuple[Domain, Severity]] = {
    "incompatible_decode_policy": ("decode_policy", "block"),
    "decode_policy_unverified": ("decode_policy", "downgrade"),
    "forced_prefix_mismatch": ("decode_policy", "block"),
    "generation_limit_mismatch": ("decode_policy", "informational"),
    "input_token_divergence": ("tokenizer_boundary", "block"),
    "prompt_identity_unverified": ("tokenizer_boundary", "downgrade"),
    "prompt_identity_digest_only": ("tokenizer_boundary", "informational"),
    "input_mode_mismatch": ("tokenizer_boundary", "informational"),
    "tokenizer_fingerprint_mismatch": ("tokenizer_boundary", "informational"),
    "output_mode_mismatch": ("tokenizer_boundary", "informational"),
    "incompatible_model_family": ("config_semantics", "block"),
    "model_fingerprint_mismatch": ("config_semantics", "block"),
    "config_fingerprint_mismatch": ("config_semantics", "block"),
    "batch_size_mismatch": ("config_semantics", "block"),
    "configured_context_mismatch": ("config_semantics", "informational"),
    "model_format_mismatch": ("config_semantics", "informational"),
    "precision_path_mismatch": ("numeric_policy", "downgrade"),
    "precision_path_missing": ("numeric_policy", "downgrade"),
    "binary_fingerprint_mismatch": ("numeric_policy", "informational"),
    "backend_mismatch": ("numeric_policy", "informational"),
    "thread_count_mismatch": ("numeric_policy", "informational"),
    "kv_storage_dtype_mismatch": ("numeric_policy", "informational"),
    "external_oracle_ineligible": ("oracle_scope", "downgrade"),
    "execution_not_ok": ("oracle_scope", "block"),
    "capture_profile_mismatch": ("oracle_scope", "downgrade"),
    "diagnostics_mismatch": ("oracle_scope", "informational"),
}
"""Every code with its domain and base severity."""

EXTERNAL_BLOCKS = frozenset(
    {
        "external_oracle_ineligible",
        "prompt_identity_unverified",
        "prompt_identity_digest_only",
    }
)
"""What blocks in the mode `external_semantic` alone."""

SUBMODE_EASES = {
    "config_fingerprint_mismatch": "configuration_equivalence",
    "precision_path_mismatch": "precision_policy_comparison",
}
"""What is informational in one submode, because it is what is compared."""

OUTCOMES: dict[Severity, tuple[Verdict, Eligibility, Strength]] = {
    "block": ("comparison_blocked", "incompatible", "no_comparison"),
    "downgrade": ("limited_comparison_allowed", "limited_comparison", "token_localization_only"),
    "informational": ("comparison_allowed", "comparable", "checkpoint_confirmation_allowed"),
}
Rule = Callable[[RunReport, RunReport], bool]


def _differ(*path: str) -> Rule:
    def rule(one: RunReport, two: RunReport) -> bool:
        left, right = one, two
        for name in path:
            left, right = getattr(left, name), getattr(right, name)
        return bool(left != right)

    return rule


def _policies(one: RunReport, two: RunReport) -> tuple[object, object]:
    first, second = (
        policy_of(item.manifest, item.forced_prefix is not UNSET) for item in (one, two)
    )
    return first, second


def _incompatible_policy(one: RunReport, two: RunReport) -> bool:
    first, second = _policies(one, two)
    return first is not None and second is not None and first != second


def _prefixes_differ(one: RunReport, two: RunReport) -> bool:
    found = [
        None if isinstance(item, msgspec.UnsetType) else (item.token_count, item.token_ids_sha256)
        for item in (one.forced_prefix, two.forced_prefix)
    ]
    return found[0] != found[1]


def _profile(report: RunReport) -> tuple[object, ...]:
    runtime = report.manifest.runtime
    return (
        runtime.layer_checkpoints_enabled,
        runtime.layer_checkpoint_step,
        runtime.diagnostic_capture_profile,
        runtime.intra_layer_target_layer,
    )


def _kv_dtype(report: RunReport) -> str | None:
    cache = report.report.kv_cache
    return cache.storage_dtype if isinstance(cache, KvCache) else None


def _no_precision(one: RunReport, two: RunReport) -> bool:
    return any(item.manifest.runtime.precision_path is UNSET for item in (one, two))


def _tokenizers_differ(one: RunReport, two: RunReport) -> bool:
    modes = {one.manifest.input.mode, two.manifest.input.mode}
    return modes != {"tokens"} and len(modes) == 1 and one.manifest.input != two.manifest.input


RULES: tuple[tuple[str, Rule], ...] = (
    ("incompatible_decode_policy", _incompatible_policy),
    ("decode_policy_unverified", lambda one, two: None in _policies(one, two)),
    ("forced_prefix_mismatch", _prefixes_differ),
    ("generation_limit_mismatch", _differ("manifest", "runtime", "generation_limit")),
    ("input_mode_mismatch", _differ("manifest", "input", "mode")),
    ("tokenizer_fingerprint_mismatch", _tokenizers_differ),
    ("output_mode_mismatch", _differ("report", "output_mode")),
    ("incompatible_model_family", _differ("manifest", "model", "family")),
    ("model_fingerprint_mismatch", _differ("manifest", "model", "fingerprint")),
    ("config_fingerprint_mismatch", _differ("manifest", "config")),
    ("batch_size_mismatch", _differ("manifest", "runtime", "batch_size")),
    ("configured_context_mismatch", _differ("manifest", "runtime", "configured_context")),
    ("model_format_mismatch", _differ("manifest", "model", "format")),
    ("precision_path_mismatch", _differ("manifest", "runtime", "precision_path")),
    ("precision_path_missing", _no_precision),
    ("binary_fingerprint_mismatch", _differ("manifest", "binary")),
    ("backend_mismatch", _differ("manifest", "backend", "name")),
    ("thread_count_mismatch", _differ("manifest", "runtime", "thread_count")),
    ("kv_storage_dtype_mismatch", lambda one, two: _kv_dtype(one) != _kv_dtype(two)),
    (
        "execution_not_ok",
        lambda one, two: {one.report.execution_status, two.report.execution_status} != {"ok"},
    ),
    ("capture_profile_mismatch", lambda one, two: _profile(one) != _profile(two)),
    ("diagnostics_mismatch", _differ("manifest", "runtime", "diagnostics_enabled")),
)
"""Rules that two reports decide; prompt identity and oracle scope are decided below."""


def severity_of(code: str, mode: Mode, submode: Submode) -> Severity:
    """Return the severity of a code in a mode and submode."""
    if mode == "external_semantic" and code in EXTERNAL_BLOCKS:
        return "block"
    if SUBMODE_EASES.get(code) == submode:
        return "informational"
    return REASONS[code][1]


def prompt_identity(
    one: RunReport, two: RunReport, prompts: tuple[Sequence[int], Sequence[int]] | None
) -> PromptIdentity:
    """Return how far the prompts are known to be equal; `prompts` are the token arrays."""
    digests = [[item.token_id_digest for item in r.report.prompt_sequences] for r in (one, two)]
    if digests[0] != digests[1]:
        return "divergent"
    if prompts is None:
        return "digest_only"
    if any(token_digest(ids) != digests[0][0] for ids in prompts):
        return "unverified"
    return "array_equal"


def calibrate(
    reference: Loaded[RunReport],
    candidate: Loaded[RunReport],
    mode: Mode = "runtime_differential",
    submode: Submode = "runtime_regression",
    *,
    prompts: tuple[Sequence[int], Sequence[int]] | None = None,
    oracle_eligible: bool = True,
) -> Calibration:
    """Return the preflight of two reports."""
    identity = prompt_identity(reference.value, candidate.value, prompts)
    codes = list(_codes(reference.value, candidate.value, identity, oracle_eligible))
    reasons = tuple(
        Reason(code=code, domain=REASONS[code][0], severity=severity_of(code, mode, submode))
        for code in sorted(codes, key=list(REASONS).index)
    )
    verdict, eligibility, strength = OUTCOMES[worst(reasons)]
    return Calibration(
        mode=mode,
        submode=submode,
        verdict=verdict,
        eligibility=eligibility,
        strength_limit=strength,
        prompt_identity=identity,
        reasons=reasons,
        reference_report_sha256=reference.sha256,
        candidate_report_sha256=candidate.sha256,
    )


def _codes(
    one: RunReport, two: RunReport, identity: PromptIdentity, oracle_eligible: bool
) -> Iterator[str]:
    yield from (code for code, rule in RULES if rule(one, two))
    by_identity = {
        "divergent": "input_token_divergence",
        "unverified": "prompt_identity_unverified",
        "digest_only": "prompt_identity_digest_only",
    }
    if identity in by_identity:
        yield by_identity[identity]
    if not oracle_eligible:
        yield "external_oracle_ineligible"


def worst(reasons: Sequence[Reason]) -> Severity:
    """Return the worst severity; none at all is informational."""
    order: tuple[Severity, ...] = ("block", "downgrade")
    found = {reason.severity for reason in reasons}
    return next((item for item in order if item in found), "informational")


def is_coherent(found: Calibration) -> bool:
    """Whether verdict, eligibility and strength are those of the reasons."""
    outcome = (found.verdict, found.eligibility, found.strength_limit)
    severities = all(
        reason.code in REASONS
        and reason.severity == severity_of(reason.code, found.mode, found.submode)
        for reason in found.reasons
    )
    return severities and outcome == OUTCOMES[worst(found.reasons)]
