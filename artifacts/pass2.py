"""Pass 2: whether an independent pair of runs reaches the mismatch from the same prefix.

Gates are checked in the order of `_gates`; the first that fails gives the status.
"""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from cke.artifacts.fingerprints import policy_of, struct_sha
from cke.artifacts.reading import Loaded
from cke.schemas.differential import (
    Calibration,
    PrefixReproduction,
    ReproductionStatus,
    Tier,
    TokenLocalization,
)
from cke.schemas.run_report import ForcedPrefix, RunReport

THREADS = "thread_count_gt_1_determinism_caveat"
Failure = tuple[ReproductionStatus, str]


class Pair(msgspec.Struct, frozen=True):
    """Reports of the reference and of the candidate."""

    reference: Loaded[RunReport]
    candidate: Loaded[RunReport]

    def items(self) -> tuple[tuple[str, Loaded[RunReport]], ...]:
        """Return both with their roles."""
        return (("reference", self.reference), ("candidate", self.candidate))


def reproduce(
    calibration: Calibration,
    tokens: TokenLocalization,
    original: Pair,
    rerun: Pair | None,
) -> PrefixReproduction:
    """Return whether the rerun reproduces the boundary of the original pair."""
    failure = _start(calibration, tokens, original)
    tier: Tier = "reproduction_request_only"
    if failure is None:
        if rerun is None:
            failure = ("inconclusive", "no_independent_rerun")
        else:
            failure = next(_gates(tokens, original, rerun), None)
            verified = failure is None
            tier = "independent_rerun_verified" if verified else "original_pair_boundary_consistent"
    index = tokens.generated_index
    prompt = original.reference.value.report.prompt_sequences[0].token_count
    threads = any(item.value.manifest.runtime.thread_count > 1 for _, item in original.items())
    return PrefixReproduction(
        status="reproduction_verified" if failure is None else failure[0],
        tier=tier,
        reasons=() if failure is None else (failure[1],),
        warnings=(THREADS,) if threads else (),
        generated_index=index,
        runtime_checkpoint_step=tokens.runtime_checkpoint_step,
        context_position=None if index is None else prompt + index,
        strength_limit=calibration.strength_limit,
        pass1_sha256=struct_sha(tokens),
        reference_report_sha256=None if rerun is None else rerun.reference.sha256,
        candidate_report_sha256=None if rerun is None else rerun.candidate.sha256,
    )


def _start(calibration: Calibration, tokens: TokenLocalization, original: Pair) -> Failure | None:
    disposition = tokens.pass2_disposition
    if disposition == "blocked_by_pass0":
        return "comparison_blocked_by_pass0", "pass0_blocked"
    if disposition == "not_required":
        return "no_mismatch_to_reproduce", "tokens_equal_on_observed_range"
    if disposition != "ready" or tokens.generated_index is None:
        return "token_localization_not_available", disposition
    if tokens.pass0_sha256 != struct_sha(calibration):
        return "source_binding_inconsistent", "pass0_sha256"
    bound = (tokens.reference_report_sha256, tokens.candidate_report_sha256)
    if bound != (original.reference.sha256, original.candidate.sha256):
        return "source_binding_inconsistent", "original_report_sha256"
    return None


def _gates(tokens: TokenLocalization, original: Pair, rerun: Pair) -> Iterator[Failure]:
    """Yield every failure of the rerun, in the order of the gates."""
    index = tokens.generated_index
    assert index is not None, "the start has been checked"
    roles = tuple(zip(original.items(), rerun.items(), strict=True))
    for (role, _), (_, again) in roles:
        body = again.value
        if body.report.execution_status != "ok" or body.manifest.runtime.batch_size != 1:
            yield "unsupported_reproduction_mode", f"{role}_metadata"
    for (role, first), (_, again) in roles:
        yield from _continuity(role, first.value, again.value)
    yield from _prefixes(tokens, rerun)
    yield from _identities(original, rerun)
    prompts = {
        item.value.report.prompt_sequences[0].token_id_digest.hex
        for _, item in (*original.items(), *rerun.items())
    }
    if len(prompts) != 1:
        yield "prefix_reproduction_failed", "prompt_digest"
    for (role, first), (_, again) in roles:
        yield from _policy(role, first.value, again.value)
        yield from _mapping(role, index, first.value, again.value)
        yield from _target(role, index, first.value, again.value)


def _continuity(role: str, first: RunReport, again: RunReport) -> Iterator[Failure]:
    """The rerun must be of the same role: one binary, model, config, input, runtime."""
    one, two = first.manifest, again.manifest
    pairs = (
        ("binary", one.binary, two.binary),
        ("model", one.model, two.model),
        ("config", one.config, two.config),
        ("input", one.input, two.input),
        ("backend", one.backend, two.backend),
        ("threads", one.runtime.thread_count, two.runtime.thread_count),
        ("context", one.runtime.configured_context, two.runtime.configured_context),
        ("precision", one.runtime.precision_path, two.runtime.precision_path),
    )
    for name, left, right in pairs:
        if left != right:
            yield "source_binding_inconsistent", f"{role}_{name}_changed"


def _prefixes(tokens: TokenLocalization, rerun: Pair) -> Iterator[Failure]:
    prefix = tokens.prefix
    assert prefix is not None, "a mismatch has a prefix"
    for role, item in rerun.items():
        found = item.value.forced_prefix
        if prefix.token_count == 0:
            if found is not UNSET:
                yield "prefix_reproduction_failed", f"{role}_prefix_unexpected"
        elif not isinstance(found, ForcedPrefix):
            yield "prefix_material_unavailable", f"{role}_forced_prefix"
        elif (found.token_count, found.token_ids_sha256) != (
            prefix.token_count,
            prefix.token_ids_sha256,
        ):
            yield "prefix_reproduction_failed", f"{role}_prefix_differs"
        elif found.source_pass1_artifact_sha256 != struct_sha(tokens):
            yield "source_binding_inconsistent", f"{role}_source_pass1"
        elif found.source_pass0_artifact_sha256 != tokens.pass0_sha256:
            yield "source_binding_inconsistent", f"{role}_source_pass0"
        elif found.source_original_run_report_sha256 != getattr(tokens, f"{role}_report_sha256"):
            yield "source_binding_inconsistent", f"{role}_source_report"


def _identities(original: Pair, rerun: Pair) -> Iterator[Failure]:
    found = [item.value.artifact_set_id for _, item in (*original.items(), *rerun.items())]
    if UNSET in found or len(set(found)) != len(found):
        yield "source_binding_inconsistent", "artifact_set_id_reused"


def _policy(role: str, first: RunReport, again: RunReport) -> Iterator[Failure]:
    one, two = (
        policy_of(item.manifest, item.forced_prefix is not UNSET) for item in (first, again)
    )
    if one is None or one != two:
        yield "decode_policy_reproduction_failed", f"{role}_policy"


def _mapping(role: str, index: int, first: RunReport, again: RunReport) -> Iterator[Failure]:
    prefix = again.forced_prefix
    runtime = again.manifest.runtime
    captured = runtime.layer_checkpoint_step if runtime.layer_checkpoints_enabled else None
    if captured not in (None, index + 1):
        yield "checkpoint_step_mapping_mismatch", f"{role}_layer_checkpoint_step"
    if not isinstance(prefix, ForcedPrefix):
        return
    if prefix.runtime_checkpoint_step != index + 1:
        yield "checkpoint_step_mapping_mismatch", f"{role}_runtime_checkpoint_step"
    prompt = first.report.prompt_sequences[0].token_count
    if prefix.context_position != prompt + index:
        yield "context_position_mismatch", f"{role}_context_position"


def _target(role: str, index: int, first: RunReport, again: RunReport) -> Iterator[Failure]:
    expected = first.report.selected_token_ids[index : index + 1]
    got = again.report.selected_token_ids
    if not expected:
        yield "unsupported_reproduction_mode", f"{role}_ended_before_the_boundary"
    elif got != expected:
        yield "prefix_reproduction_failed", f"{role}_target_token"
