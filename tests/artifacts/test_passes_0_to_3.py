"""Passes 0 to 3: every status has a case, and bindings come before summaries."""

import copy
from typing import get_args

import msgspec
import pytest

from cke.artifacts.fingerprints import (
    LIS_GREEDY,
    RAW_GREEDY,
    canonical_sha,
    runtime_fingerprint,
    struct_sha,
)
from cke.artifacts.pass0 import OUTCOMES, REASONS, calibrate, is_coherent
from cke.artifacts.pass1 import DISPOSITIONS, localize_tokens, prefix_of
from cke.artifacts.pass2 import Pair, _policy, reproduce
from cke.artifacts.pass3 import localize_layers
from cke.artifacts.seeded import SeededEngine
from cke.artifacts.sources import bind
from cke.artifacts.verdict import verdict_of
from cke.artifacts.verify import EngineRunner
from cke.schemas import differential
from tests.artifacts.documents import DELETE
from tests.artifacts.generations import (
    FAULT,
    REQUEST,
    compared,
    edited,
    generation,
    mark,
    pair,
    raw,
    sides,
    with_trace,
)

replace = msgspec.structs.replace
PROMPTS = (REQUEST.tokens, REQUEST.tokens)
PREFIX = "forced_prefix."


def original(role):
    return generation(0).original[role].report


CALIBRATIONS = [
    ([("manifest.model.family", "qwen3_dense_decoder")], "incompatible_model_family", "block"),
    ([("manifest.model.fingerprint", mark("1"))], "model_fingerprint_mismatch", "block"),
    ([("manifest.config.fingerprint", mark("1"))], "config_fingerprint_mismatch", "block"),
    ([("report.prompt_sequences.0.token_id_digest.hex", "1" * 16)], "input_token_divergence",
     "block"),
    ([("manifest.runtime.precision_path", "bf16")], "precision_path_mismatch", "downgrade"),
    ([("manifest.runtime.precision_path", DELETE)], "precision_path_missing", "downgrade"),
    ([("manifest.binary.fingerprint", mark("1"))], "binary_fingerprint_mismatch",
     "informational"),
    ([("manifest.backend.name", "other")], "backend_mismatch", "informational"),
    ([("manifest.runtime.thread_count", 2)], "thread_count_mismatch", "informational"),
    ([("manifest.runtime.layer_checkpoints_enabled", True)], "capture_profile_mismatch",
     "downgrade"),
    ([("manifest.runtime.layer_checkpoint_step", 2)], "capture_profile_mismatch", "downgrade"),
    ([("manifest.runtime.diagnostics_enabled", True)], "diagnostics_mismatch", "informational"),
    ([("manifest.runtime.generation_limit", 13)], "generation_limit_mismatch", "informational"),
    ([("manifest.runtime.configured_context", 99)], "configured_context_mismatch",
     "informational"),
    ([("manifest.model.format", "gguf")], "model_format_mismatch", "informational"),
    ([("manifest.input.mode", "vocab_prompt")], "input_mode_mismatch", "informational"),
    ([("report.output_mode", "text")], "output_mode_mismatch", "informational"),
    ([("report.execution_status", "error"), ("report.status_code", 1)], "execution_not_ok",
     "block"),
    ([("report.kv_cache", DELETE)], "kv_storage_dtype_mismatch", "informational"),
    ([("manifest.runtime.fingerprint", mark("1"))], "decode_policy_unverified", "downgrade"),
]  # fmt: skip


@pytest.mark.contract("LIS-141", "LIS-22")
@pytest.mark.parametrize(("changes", "code", "severity"), CALIBRATIONS)
def test_preflight_finds_what_differs(changes, code, severity):
    other = edited(original("reference"), *changes)
    found = calibrate(original("reference"), other, prompts=PROMPTS)
    severities = {reason.code: reason.severity for reason in found.reasons}
    assert severities[code] == severity
    assert is_coherent(found)
    back = calibrate(other, original("reference"))
    assert code in {reason.code for reason in back.reasons}


@pytest.mark.contract("LIS-141")
def test_preflight_of_equal_reports_finds_nothing():
    one = original("reference")
    found = calibrate(one, one, prompts=PROMPTS)
    assert (found.reasons, found.verdict) == ((), "comparison_allowed")
    same = [("manifest.input.mode", "vocab_prompt")]
    assert codes_of(edited(one, *same), edited(one, *same)) == {"decode_policy_unverified"}
    bare = edited(one, ("report.kv_cache", DELETE))
    assert codes_of(bare, bare) == set()


def codes_of(one, two):
    return {reason.code for reason in calibrate(one, two, prompts=PROMPTS).reasons}


@pytest.mark.contract("LIS-141")
def test_preflight_names_one_reason_for_one_difference():
    one = original("reference")
    unknown = edited(one, ("manifest.runtime.fingerprint", mark("1")))
    assert codes_of(one, unknown) == codes_of(unknown, one) == {"decode_policy_unverified"}
    tokens = edited(one, ("manifest.input.fingerprint", mark("2")))
    assert codes_of(one, tokens) == set()
    text = edited(tokens, ("manifest.input.mode", "vocab_prompt"))
    assert "tokenizer_fingerprint_mismatch" not in codes_of(one, text)
    rerun = generation(0).rerun
    assert codes_of(rerun["reference"].report, rerun["candidate"].report) == {
        "binary_fingerprint_mismatch"
    }


@pytest.mark.contract("LIS-141")
def test_reasons_that_the_table_does_not_hold_are_incoherent():
    found = calibrate(original("reference"), original("candidate"), prompts=PROMPTS)
    (reason,) = found.reasons
    assert not is_coherent(replace(found, reasons=(replace(reason, code="new"),)))
    outcome = dict(
        zip(("verdict", "eligibility", "strength_limit"), OUTCOMES["block"], strict=True)
    )
    severe = replace(found, reasons=(replace(reason, severity="block"),), **outcome)
    assert not is_coherent(severe)


@pytest.mark.contract("LIS-141")
def test_policy_prefix_batch_and_tokenizer_are_told_apart():
    engine = SeededEngine()
    reference = EngineRunner(engine).run(REQUEST).report
    cases = {
        "incompatible_decode_policy": replace(REQUEST, policy=LIS_GREEDY),
        "batch_size_mismatch": replace(REQUEST, batch=2),
    }
    for code, request in cases.items():
        found = calibrate(reference, EngineRunner(engine).run(request).report)
        assert (found.verdict, found.eligibility) == ("comparison_blocked", "incompatible")
        assert code in {reason.code for reason in found.reasons}
    rerun = generation(0).rerun["reference"].report
    codes = {reason.code for reason in calibrate(reference, rerun).reasons}
    assert "forced_prefix_mismatch" in codes
    text = [("manifest.input.mode", "vocab_prompt")]
    one, two = (
        edited(reference, *text),
        edited(reference, *text, ("manifest.input.fingerprint", mark("2"))),
    )
    assert "tokenizer_fingerprint_mismatch" in {r.code for r in calibrate(one, two).reasons}


@pytest.mark.contract("LIS-141")
def test_prompt_identity_is_as_strong_as_its_evidence():
    one = original("reference")
    assert calibrate(one, one, prompts=PROMPTS).prompt_identity == "array_equal"
    digest = calibrate(one, one)
    assert (digest.prompt_identity, digest.verdict) == ("digest_only", "comparison_allowed")
    wrong = calibrate(one, one, prompts=((1, 2), REQUEST.tokens))
    assert (wrong.prompt_identity, wrong.strength_limit) == (
        "unverified",
        "token_localization_only",
    )
    for prompts in (None, ((1, 2), REQUEST.tokens)):
        external = calibrate(one, one, "external_semantic", prompts=prompts)
        assert external.verdict == "comparison_blocked"
    built = edited(one, ("manifest.binary.fingerprint", mark("1")))
    other = calibrate(one, built, "external_semantic", prompts=PROMPTS)
    assert [reason.severity for reason in other.reasons] == ["informational"]
    inner = calibrate(one, one, prompts=PROMPTS, oracle_eligible=False)
    assert inner.strength_limit == "token_localization_only"
    ineligible = calibrate(one, one, "external_semantic", prompts=PROMPTS, oracle_eligible=False)
    assert [r.code for r in ineligible.reasons] == ["external_oracle_ineligible"]
    assert ineligible.verdict == "comparison_blocked"


@pytest.mark.contract("LIS-141")
@pytest.mark.parametrize(
    ("change", "submode", "code"),
    [
        (("manifest.config.fingerprint", mark("1")), "configuration_equivalence",
         "config_fingerprint_mismatch"),
        (("manifest.runtime.precision_path", "bf16"), "precision_policy_comparison",
         "precision_path_mismatch"),
    ],
)  # fmt: skip
def test_what_a_submode_compares_does_not_block_it(change, submode, code):
    one, two = original("reference"), edited(original("reference"), change)
    for name, expected in ((submode, "informational"), ("runtime_regression", REASONS[code][1])):
        found = calibrate(one, two, submode=name, prompts=PROMPTS)
        assert {r.code: r.severity for r in found.reasons}[code] == expected


@pytest.mark.contract("LIS-141")
def test_table_of_codes_is_whole():
    assert len(REASONS) == 26
    assert set(OUTCOMES) == set(get_args(differential.Severity))
    always = ("incompatible_decode_policy", "input_token_divergence", "incompatible_model_family")
    assert {REASONS[code][1] for code in always} == {"block"}


def calibrated(one, two):
    return localize_tokens(calibrate(one, two, prompts=PROMPTS), one, two)


TOKENS = [
    ("comparison_blocked_by_pass0", [("manifest.config.fingerprint", mark("1"))]),
    ("token_equivalent_on_observed_range", []),
    ("first_mismatch_found", [("report.selected_token_ids.4", 63)]),
    ("input_token_divergence", [("report.prompt_sequences.0.token_id_digest.hex", "1" * 16)]),
    ("selected_token_array_missing", [("report.selected_token_ids", [])]),
]


@pytest.mark.contract("LIS-137", "LIS-141", "LIS-142")
@pytest.mark.parametrize(("status", "changes"), TOKENS)
def test_status_of_pass_1(status, changes):
    found = calibrated(original("reference"), edited(original("reference"), *changes))
    assert (found.status, found.pass2_disposition) == (status, DISPOSITIONS[status])


@pytest.mark.contract("LIS-141")
def test_other_statuses_of_pass_1():
    one = original("reference")
    wrong = raw(one, ("report.selected_token_digest.hex", "1" * 16))
    assert calibrated(one, wrong).status == "selected_token_identity_unverified"
    other = edited(one, ("manifest.model.family", "gemma2_decoder"))
    assert calibrated(other, other).status == "unsupported_comparison"
    assert calibrated(other, other).reasons == ("family_unsupported",)
    calibration = calibrate(one, one, prompts=PROMPTS)
    incoherent = replace(calibration, verdict="comparison_blocked")
    assert localize_tokens(incoherent, one, one).reasons == ("pass0_incoherent",)
    stale = localize_tokens(calibration, one, edited(one, ("report.stop_reason", "none")))
    assert (stale.status, stale.reasons) == ("inconclusive", ("source_binding_inconsistent",))
    assert set(DISPOSITIONS) == set(get_args(differential.TokenStatus))


@pytest.mark.contract("LIS-141")
def test_gates_of_pass_1_hold_though_a_preflight_lets_them_through():
    one = original("reference")
    failed = edited(one, ("report.execution_status", "error"), ("report.status_code", 1))
    allowed = calibrate(one, one, prompts=PROMPTS)
    bound = {"reference_report_sha256": failed.sha256, "candidate_report_sha256": failed.sha256}
    found = localize_tokens(replace(allowed, **bound), failed, failed)
    assert (found.status, found.reasons) == ("unsupported_comparison", ("execution_not_ok",))
    rows = EngineRunner(SeededEngine()).run(replace(REQUEST, batch=2)).report
    found = calibrated(rows, rows)
    assert (found.status, found.reasons) == ("unsupported_comparison", ("batch_unsupported",))


@pytest.mark.contract("LIS-141")
def test_reasons_of_a_blocked_comparison_are_those_that_block():
    one = original("reference")
    other = edited(
        one,
        ("manifest.config.fingerprint", mark("1")),
        ("manifest.runtime.thread_count", 2),
    )
    assert calibrated(one, other).reasons == ("config_fingerprint_mismatch",)


@pytest.mark.contract("LIS-142")
@pytest.mark.parametrize("swapped", [False, True])
def test_shorter_run_differs_at_its_end(swapped):
    one = original("reference")
    ids = list(one.value.report.selected_token_ids)
    short = edited(one, ("report.selected_token_ids", ids[:5]))
    found = calibrated(short, one) if swapped else calibrated(one, short)
    assert found.mismatch_kind == "length_mismatch_or_early_termination"
    assert (found.generated_index, found.runtime_checkpoint_step) == (5, 6)
    given = [found.reference_token_id, found.candidate_token_id]
    assert given == ([None, ids[5]] if swapped else [ids[5], None])


@pytest.mark.contract("LIS-141")
def test_mismatch_is_named_with_its_prefix():
    found = generation(0).tokens
    assert (found.generated_index, found.runtime_checkpoint_step) == (5, 6)
    assert found.prefix.token_count == len(found.prefix.token_ids) == 5
    assert found.mismatch_kind == "token_id_mismatch"
    assert found.reference_token_id != found.candidate_token_id
    long = prefix_of(range(65))
    assert (long.token_ids, long.exact_source_required) == (None, True)
    assert prefix_of(range(64)).token_ids == tuple(range(64))


@pytest.mark.contract("LIS-141", "LIS-22")
def test_strength_limit_blocks_the_reproduction():
    one, two = (original(role) for role in ("reference", "candidate"))
    two = edited(two, ("manifest.runtime.precision_path", "bf16"))
    found = calibrated(one, two)
    assert (found.status, found.pass2_disposition) == (
        "first_mismatch_found",
        "blocked_by_strength_limit",
    )


def reproduced(rerun=None, first=None, **change):
    found = generation(0)
    tokens = replace(found.tokens, **change) if change else found.tokens
    calibration = found.calibration
    return reproduce(calibration, tokens, first or pair(found.original), rerun or pair(found.rerun))


def bare(**change):
    """Pass 2 of the original pair alone."""
    found = generation(0)
    tokens = replace(found.tokens, **change)
    return reproduce(found.calibration, tokens, pair(found.original), None)


@pytest.mark.contract("LIS-141")
def test_without_a_boundary_there_is_no_position_of_the_context():
    one = original("reference")
    calibration = calibrate(one, one, prompts=PROMPTS)
    found = reproduce(calibration, localize_tokens(calibration, one, one), Pair(one, one), None)
    assert (found.status, found.generated_index, found.context_position) == (
        "no_mismatch_to_reproduce",
        None,
        None,
    )
    assert bare(generated_index=None).status == "token_localization_not_available"


def changed(*changes, role="candidate"):
    """The rerun pair with one report changed."""
    found = pair(generation(0).rerun)
    return replace(found, **{role: raw(getattr(found, role), *changes)})


RERUNS = [
    ("reproduction_verified", ()),
    ("source_binding_inconsistent", (("manifest.binary.fingerprint", mark("1")),)),
    ("source_binding_inconsistent", (("manifest.model.fingerprint", mark("1")),)),
    ("source_binding_inconsistent", (("manifest.config.fingerprint", mark("1")),)),
    ("source_binding_inconsistent", (("manifest.input.fingerprint", mark("1")),)),
    ("source_binding_inconsistent", (("manifest.backend.name", "other"),)),
    ("source_binding_inconsistent", (("manifest.runtime.thread_count", 2),)),
    ("source_binding_inconsistent", (("manifest.runtime.configured_context", 99),)),
    ("source_binding_inconsistent", (("manifest.runtime.precision_path", "bf16"),)),
    ("source_binding_inconsistent", ((PREFIX + "source_pass1_artifact_sha256", "0" * 64),)),
    ("source_binding_inconsistent", ((PREFIX + "source_pass0_artifact_sha256", "0" * 64),)),
    ("source_binding_inconsistent", ((PREFIX + "source_original_run_report_sha256", "0" * 64),)),
    ("source_binding_inconsistent", (("artifact_set_id", DELETE),)),
    ("prefix_material_unavailable", (("forced_prefix", DELETE),)),
    ("prefix_reproduction_failed", ((PREFIX + "token_ids_sha256", "0" * 64),)),
    ("prefix_reproduction_failed", (("report.selected_token_ids", [1]),)),
    ("prefix_reproduction_failed", (("report.selected_token_ids", [1, 2]),)),
    ("prefix_reproduction_failed",
     (("report.prompt_sequences.0.token_id_digest.hex", "1" * 16),)),
    ("decode_policy_reproduction_failed", (("manifest.runtime.fingerprint", mark("1")),)),
    ("checkpoint_step_mapping_mismatch", ((PREFIX + "runtime_checkpoint_step", 5),)),
    ("context_position_mismatch", ((PREFIX + "context_position", 5),)),
    ("unsupported_reproduction_mode", (("report.execution_status", "error"),)),
    ("unsupported_reproduction_mode", (("manifest.runtime.batch_size", 2),)),
]  # fmt: skip


@pytest.mark.contract("LIS-137", "LIS-141", "LIS-61")
@pytest.mark.parametrize("role", ["reference", "candidate"])
@pytest.mark.parametrize(("status", "changes"), RERUNS)
def test_status_of_pass_2(status, changes, role):
    found = reproduced(changed(*changes, role=role))
    assert found.status == status
    verified = status == "reproduction_verified"
    assert found.tier == (
        "independent_rerun_verified" if verified else "original_pair_boundary_consistent"
    )
    assert all(reason.startswith(role) or reason in ("prompt_digest", "artifact_set_id_reused")
               for reason in found.reasons)  # fmt: skip


@pytest.mark.contract("LIS-141")
def test_other_statuses_of_pass_2():
    for disposition, status in (
        ("blocked_by_pass0", "comparison_blocked_by_pass0"),
        ("not_required", "no_mismatch_to_reproduce"),
        ("blocked_by_evidence", "token_localization_not_available"),
        ("blocked_by_strength_limit", "token_localization_not_available"),
    ):
        assert reproduced(pass2_disposition=disposition).status == status
        assert bare(pass2_disposition=disposition).status == status
    found = generation(0)
    alone = reproduce(found.calibration, found.tokens, pair(found.original), None)
    assert (alone.status, alone.tier) == ("inconclusive", "reproduction_request_only")
    swapped = Pair(pair(found.rerun).candidate, pair(found.rerun).reference)
    assert reproduced(swapped).reasons == ("reference_binary_changed",)
    assert reproduced(first=pair(found.rerun)).reasons == ("original_report_sha256",)
    reused = changed(("artifact_set_id", original("reference").value.artifact_set_id))
    assert reproduced(reused).reasons == ("artifact_set_id_reused",)
    stale = replace(found.calibration, mode="backend_differential")
    assert reproduce(stale, found.tokens, pair(found.original), pair(found.rerun)).reasons == (
        "pass0_sha256",
    )


@pytest.mark.contract("LIS-141")
def test_threads_are_a_warning_and_no_failure():
    runs = generation(0)
    engine = SeededEngine()
    engine.facts = replace(engine.facts, threads=2)
    first = EngineRunner(engine).run(REQUEST).report
    found = reproduce(
        runs.calibration, runs.tokens, Pair(runs.original["reference"].report, first), None
    )
    assert found.warnings == ("thread_count_gt_1_determinism_caveat",)
    assert reproduced().warnings == ()


def refitted(*changes):
    """The rerun pair with the candidate's manifest changed, and its fingerprint made to fit."""
    found = pair(generation(0).rerun)
    candidate = raw(found.candidate, *changes)
    fitting = runtime_fingerprint(candidate.value.manifest, RAW_GREEDY, True)
    fingerprint = ("manifest.runtime.fingerprint", msgspec.to_builtins(fitting))
    return replace(found, candidate=raw(candidate, fingerprint))


@pytest.mark.contract("LIS-141")
def test_layer_checkpoints_of_a_rerun_are_those_of_its_step_or_none():
    enabled, step = (f"manifest.runtime.layer_checkpoint{end}" for end in ("s_enabled", "_step"))
    other = reproduced(refitted((step, 5)))
    assert (other.status, other.reasons) == (
        "checkpoint_step_mapping_mismatch",
        ("candidate_layer_checkpoint_step",),
    )
    none = reproduced(refitted((enabled, False), (step, 0)))
    assert none.status == "reproduction_verified"


@pytest.mark.contract("LIS-141")
def test_policy_that_no_run_names_is_not_reproduced():
    unknown = raw(original("reference"), ("manifest.runtime.fingerprint", mark("1"))).value
    assert list(_policy("reference", unknown, unknown)) == [
        ("decode_policy_reproduction_failed", "reference_policy")
    ]


@pytest.mark.contract("LIS-141", "LIS-142")
def test_run_that_ended_before_the_boundary_has_no_token_to_reproduce():
    one = original("reference")
    ids = list(one.value.report.selected_token_ids)
    short = edited(
        one,
        ("report.selected_token_ids", ids[:5]),
        ("artifact_set_id", "aset1:" + "0" * 32),
    )
    calibration = calibrate(one, short, prompts=PROMPTS)
    tokens = localize_tokens(calibration, one, short)
    runner = EngineRunner(SeededEngine())
    requests = compared(runner, runner)._bound_request(tokens)
    rerun = Pair(*(runner.run(requests[role]).report for role in ("reference", "candidate")))
    found = reproduce(calibration, tokens, Pair(one, short), rerun)
    assert (found.status, found.reasons) == (
        "unsupported_reproduction_mode",
        ("candidate_ended_before_the_boundary",),
    )


@pytest.mark.contract("LIS-137", "LIS-141")
def test_mismatch_of_the_first_token_is_reproduced_without_a_prefix():
    ids = original("reference").value.report.selected_token_ids
    request = replace(REQUEST, tokens=(*REQUEST.tokens, *ids[:5]), generate=7)
    runners = [EngineRunner(SeededEngine(fault=fault)) for fault in (None, FAULT)]
    comparison = compared(*runners, request)
    found = comparison.run()
    assert (found.tokens.generated_index, found.tokens.prefix.token_count) == (0, 0)
    assert found.reproduction.status == "reproduction_verified"
    assert found.layers.target_layer == FAULT.layer
    assert found.stages.status == "observable_intra_layer_mismatch_found"
    forced = generation(0).rerun["candidate"].report.document["forced_prefix"]
    first = [runner.run(comparison._request).report for runner in runners]
    calibration = calibrate(*first)
    tokens = localize_tokens(calibration, *first)
    again = [runner.run(replace(comparison._request, generate=1)).report for runner in runners]
    given = raw(again[1], ("forced_prefix", forced))
    result = reproduce(calibration, tokens, Pair(*first), Pair(again[0], given))
    assert (result.status, result.reasons) == (
        "prefix_reproduction_failed",
        ("candidate_prefix_unexpected",),
    )


def localized(reference=None, candidate=None, **change):
    found = generation(0)
    reproduction = replace(found.reproduction, **change) if change else found.reproduction
    one, two = sides(found.rerun)
    return localize_layers(found.tokens, reproduction, reference or one, candidate or two)


@pytest.mark.contract("LIS-137", "LIS-138", "LIS-139", "LIS-141")
def test_earliest_layer_is_named_within_common_coverage():
    found = localized()
    assert (found.status, found.disposition) == (
        "observable_mismatch_found",
        "suspect_interval_available",
    )
    assert found.target_layer == 2
    assert found.interval.notation == "(layer.1.output, layer.2.output]"
    assert (found.interval.unobserved, found.reasons) == ((), ())
    assert [item.digest_equal for item in found.comparisons] == [True, True, False]
    assert not any(msgspec.structs.asdict(found.nonclaims).values())


def without(side, *layers, digest=None):
    """A side whose run has not captured the given layers."""
    layout = side.trace["checkpoint_layout"]
    gone = [f"layer.{layer}.output" for layer in layers]
    entries = [entry for entry in side.trace["layer_trace"] if entry["name"] not in gone]
    missing = [{"coordinate": name, "state": "not_captured", "detail": ""} for name in gone]
    return with_trace(
        side,
        ("layer_trace", entries),
        ("checkpoint_layout", {
            **layout,
            "captured_coordinates": [entry["name"] for entry in entries],
            "missing_coordinates": missing,
        }),
    )  # fmt: skip


@pytest.mark.contract("LIS-138")
def test_unobserved_layers_are_listed():
    one, two = sides(generation(0).rerun)
    found = localized(without(one, 1, 2))
    assert found.interval.notation == "(layer.0.output, layer.3.output]"
    assert found.interval.unobserved == ("layer.1.output", "layer.2.output")
    assert found.coverage.candidate_only == ("layer.1.output", "layer.2.output")
    assert found.reasons == ("asymmetric_coverage",)
    other = localized(candidate=without(two, 4))
    assert (other.coverage.reference_only, other.reasons) == (
        ("layer.4.output",),
        ("asymmetric_coverage",),
    )
    start = localized(without(one, 0, 1), two)
    assert start.interval.notation == "[entry, layer.2.output]"
    assert start.interval.unobserved == ("layer.0.output", "layer.1.output")


UNSUPPORTED, UNAVAILABLE = "unsupported_checkpoint_layout", "comparison_policy_unavailable"
MALFORMED, DIGEST = "checkpoint_summary_malformed", "digest_contract_unknown"
LAYER_STATUSES = [
    (UNSUPPORTED, "no_versioned_layout", ("checkpoint_layout", DELETE)),
    (UNSUPPORTED, "no_versioned_layout", ("checkpoint_layout", 1)),
    (UNSUPPORTED, "layout_unknown", ("checkpoint_layout.layout_version", 2)),
    (UNSUPPORTED, "layout_unknown", ("checkpoint_layout.layout_name", "other")),
    (UNAVAILABLE, DIGEST, ("checkpoint_layout.digest_contract", DELETE)),
    (UNAVAILABLE, DIGEST, ("checkpoint_layout.digest_contract.version", "other")),
    (MALFORMED, "$.layer_trace[0]", ("layer_trace.0.nan", True)),
    (MALFORMED, "$.layer_trace[0]", ("layer_trace.0.values", [1])),
]


@pytest.mark.contract("LIS-141", "LIS-99", "LIS-92", "LIS-96")
@pytest.mark.parametrize(("status", "reason", "change"), LAYER_STATUSES)
@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_status_of_pass_3(status, reason, change, role):
    one, two = sides(generation(0).rerun)
    side = with_trace(one if role == "reference" else two, change)
    found = localized(**{role: side})
    assert (found.status, found.disposition) == (status, "blocked")
    assert len(found.reasons) == 1
    assert (
        found.reasons[0].startswith(reason) if status == MALFORMED else found.reasons == (reason,)
    )


@pytest.mark.contract("LIS-141", "LIS-89", "LIS-127")
def test_other_statuses_of_pass_3():
    one, two = sides(generation(0).rerun)
    assert localized(status="inconclusive").status == "comparison_blocked_by_pass2"
    assert localized(pass1_sha256="0" * 64).reasons == ("pass2_incoherent",)
    assert localized(tier="reproduction_request_only").reasons == ("pass2_incoherent",)
    assert localized(generated_index=4).reasons == ("pass2_incoherent",)
    assert localized(runtime_checkpoint_step=5).reasons == ("pass2_incoherent",)
    assert localized(replace(one, role="candidate")).reasons == ("reference_role",)
    assert localized(replace(one, trace=None)).status == "checkpoint_artifact_missing"
    assert localized(two, one).reasons == ("reference_run_report",)
    assert localized(replace(one, trace_sha256="0" * 64)).reasons == ("reference_trace_sha",)
    assert localized(without(one, *range(6))).status == "insufficient_common_coverage"
    assert localized(one, replace(one, role="candidate")).reasons == ("candidate_run_report",)
    weak = localized(strength_limit="token_localization_only")
    assert weak.disposition == "exploratory_localization_only"
    equal = with_trace(two, ("layer_trace", one.trace["layer_trace"]))
    none = localized(candidate=equal)
    assert (none.status, none.disposition) == ("no_mismatch_in_captured_coverage", "blocked")
    assert (none.interval, none.target_layer) == (None, None)


def rebound(*changes, roles=("reference", "candidate")):
    """Pass 3 of runs whose manifests are changed, and bound as they then are."""
    found = {
        side.role: replace(with_trace(side, *changes), report=raw(side.report, *changes))
        if side.role in roles
        else side
        for side in sides(generation(0).rerun)
    }
    shas = {f"{role}_report_sha256": side.report.sha256 for role, side in found.items()}
    return localized(**found, **shas)


@pytest.mark.contract("LIS-94", "LIS-140", "LIS-141")
def test_traces_are_compared_for_one_family_and_one_known_precision():
    assert rebound(("manifest.runtime.generation_limit", 9)).target_layer == FAULT.layer
    family = rebound(("manifest.model.family", "qwen3_dense_decoder"))
    assert (family.status, family.reasons) == (
        "unsupported_checkpoint_layout",
        ("no_versioned_layout",),
    )
    precision = "manifest.runtime.precision_path"
    for found in (rebound((precision, "bf16"), roles=("candidate",)), rebound((precision, DELETE))):
        assert (found.status, found.reasons) == (
            "checkpoint_alignment_inconsistent",
            ("precision_path",),
        )


@pytest.mark.contract("LIS-141")
def test_layouts_of_other_models_and_shapes_are_not_aligned():
    two = sides(generation(0).rerun)[1]
    layout = two.trace["checkpoint_layout"]
    seven = {
        "total_layer_count": 7,
        "requested_coordinates": [*layout["requested_coordinates"], "layer.6.output"],
        "missing_coordinates": [
            {"coordinate": "layer.6.output", "state": "not_captured", "detail": ""}
        ],
    }
    found = localized(candidate=with_trace(two, ("checkpoint_layout", {**layout, **seven})))
    assert (found.status, found.reasons) == (
        "checkpoint_alignment_inconsistent",
        ("total_layer_count",),
    )
    flat = (("layer_trace.0.shape", [16]), ("layer_trace.0.digest.shape", [16]))
    found = localized(candidate=with_trace(two, *flat))
    assert (found.status, found.reasons) == (
        "checkpoint_alignment_inconsistent",
        ("shape_or_order",),
    )


@pytest.mark.contract("LIS-88", "LIS-89", "LIS-90", "LIS-127", "LIS-141")
@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("artifact_set_id", "aset1:" + "0" * 32, "candidate_artifact_set"),
        ("manifest.runtime.generation_limit", 7, "candidate_semantic_manifest"),
        ("manifest.binary.fingerprint.hex", "0" * 16, "candidate_semantic_manifest"),
    ],
)
def test_binding_is_reported_before_broken_summaries(path, value, reason):
    two = sides(generation(0).rerun)[1]
    found = localized(candidate=with_trace(two, ("layer_trace.0.nan", True), (path, value)))
    assert (found.status, found.reasons) == ("source_binding_inconsistent", (reason,))


@pytest.mark.contract("LIS-89", "LIS-127")
def test_other_content_under_a_copied_set_id_is_refused_by_its_hash():
    two = sides(generation(0).rerun)[1]
    other = with_trace(two, ("layer_trace.0.mean", 0.0), trace_sha256=two.trace_sha256)
    assert localized(candidate=other).reasons == ("candidate_trace_sha",)


@pytest.mark.contract("LIS-94", "LIS-140")
def test_qwen3_is_compared_and_not_localised():
    def engine(fault=None):
        return EngineRunner(SeededEngine(fault=fault, family="qwen3_dense_decoder"))

    found = compared(engine(), engine(FAULT)).run()
    assert found.tokens.status == "first_mismatch_found"
    assert found.reproduction.status == "reproduction_verified"
    assert found.layers.status == "unsupported_checkpoint_layout"
    assert found.stages is None
    assert verdict_of(found) == "REGRESSION"
    assert verdict_of(compared(engine(), engine()).run()) == "PASS"


def test_results_are_deterministic():
    assert struct_sha(generation(0).tokens) == struct_sha(generation(0).tokens)
    assert struct_sha(generation(0).tokens) != struct_sha(generation(1).tokens)


@pytest.mark.contract("LIS-125", "LIS-141")
def test_trace_is_bound_by_each_of_its_bindings_in_turn():
    side = generation(0).rerun["reference"].side("reference")
    report, step = side.report, side.report.value.manifest.runtime.layer_checkpoint_step
    assert bind(side, report.sha256, step).source.report_sha256 == report.sha256
    assert bind(replace(side, trace=None), report.sha256, step) == "trace_missing"
    assert bind(side, "0" * 64, step) == "run_report"
    altered = copy.deepcopy(report.document)
    altered["report"]["output_mode"] = "text"
    assert bind(replace(side, report=replace(report, document=altered)), report.sha256, step) == (
        "run_report"
    )
    nameless = {key: item for key, item in report.document.items() if key != "artifact_set_id"}
    older = replace(report, document=nameless, sha256=canonical_sha(nameless))
    trace = {key: item for key, item in side.trace.items() if key != "artifact_set_id"}
    assert bind(replace(side, report=older, trace=trace), older.sha256, step) == "artifact_set"
    assert bind(side, report.sha256, step + 1) == "step"
    assert bind(side, report.sha256, None) == "step"
    assert bind(replace(side, trace_sha256="0" * 64), report.sha256, step) == "trace_sha"
