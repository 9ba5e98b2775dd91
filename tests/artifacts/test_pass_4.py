"""Pass 4: every status and reason code, and what comes before what."""

from typing import get_args

import msgspec
import pytest

from cke.artifacts.fingerprints import canonical_sha
from cke.artifacts.pass4 import Parents, Recapture, _alignment, _misplaced, localize_stages
from cke.artifacts.pass4_reasons import DISPOSITIONS, REASONS
from cke.artifacts.reading import load_layer_trace
from cke.artifacts.seeded import Fault, SeededEngine
from cke.artifacts.stages import STAGE_IDS
from cke.artifacts.verify import EngineRunner
from cke.schemas import differential
from tests.artifacts.documents import DELETE, PATH
from tests.artifacts.generations import (
    compared,
    generation,
    parents,
    recapture,
    with_trace,
    workflow,
)

replace = msgspec.structs.replace
REFERENCE, CANDIDATE = "reproduction_reference", "reproduction_candidate"
LAYOUT, STAGE = "intra_layer_checkpoint_layout", "intra_layer_trace.3"


def localized(found=None, runs=None):
    result = localize_stages(found or parents(), runs or recapture())
    assert result.status == REASONS[result.reason]
    assert result.disposition == DISPOSITIONS[result.status]
    return result


def rebound(*changes, name=CANDIDATE, keep=False):
    """Parents and runs in which one trace is changed and, unless kept, bound anew."""
    found, runs = parents(), dict(recapture().runs)
    side = with_trace(runs[name], *changes)
    runs[name] = side
    if keep:
        return found, Recapture(runs)
    role = name.partition("_")[2]
    source = replace(getattr(found.authority, role), trace_sha256=side.trace_sha256)
    authority = replace(found.authority, **{role: source})
    return replace(found, authority=authority), Recapture(runs)


def both(change):
    """Parents and runs in which both reproduction traces are changed and bound anew."""
    found, runs = rebound(*change(recapture().runs[REFERENCE].trace), name=REFERENCE)
    side = with_trace(runs.runs[CANDIDATE], *change(runs.runs[CANDIDATE].trace))
    source = replace(found.authority.candidate, trace_sha256=side.trace_sha256)
    found = replace(found, authority=replace(found.authority, candidate=source))
    return found, Recapture({**runs.runs, CANDIDATE: side})


@pytest.mark.contract("LIS-125", "LIS-126", "LIS-131", "LIS-134")
def test_stage_of_the_fault_is_named():
    found = localized()
    assert (found.kind, found.contract_version, found.contract_namespace) == (
        "intra_layer_localization",
        "differential_verification_contract_v1",
        "coverage_scoped_intra_layer_localization",
    )
    assert found.schema == "lis.execution_artifact/v1"
    assert found.target_layer == 2
    assert found.interval.notation == "(post_attention_residual, mlp_norm_output]"
    assert found == workflow()[0].stages
    claims = msgspec.to_builtins(found.nonclaims)
    assert len(claims) == 8
    assert not any(claims.values())


@pytest.mark.contract("LIS-136", "LIS-134")
def test_every_comparison_after_the_first_difference_is_kept():
    found = localized()
    assert [item.coordinate for item in found.comparisons] == list(STAGE_IDS)
    assert [item.digest_equal for item in found.comparisons] == [True] * 12 + [False] * 5


@pytest.mark.contract("LIS-134", "LIS-120")
def test_equal_stages_end_at_the_inherited_boundary():
    entries = recapture().runs[REFERENCE].trace["intra_layer_trace"]
    found = localized(*rebound(("intra_layer_trace", entries)))
    assert found.status == "mismatch_bounded_to_inherited_closing_boundary"
    assert found.interval.notation == "(mlp_down_projection, parent:layer_output]"
    assert found.interval.unobserved == ()


def test_fault_of_the_layer_output_itself_ends_at_the_boundary():
    stages = run_workflow(Fault(4, "layer_output", -1.0))
    assert stages.reason == "pass4.no_local_mismatch_before_inherited_boundary"
    assert stages.target_layer == 4


def run_workflow(fault):
    runners = (EngineRunner(SeededEngine()), EngineRunner(SeededEngine(fault=fault)))
    return compared(*runners).run().stages


def without(trace, *stages):
    layout = trace[LAYOUT]
    return (
        (f"{LAYOUT}.captured_coordinates", [n for n in STAGE_IDS if n not in stages]),
        (f"{LAYOUT}.missing_coordinates", [
            {"coordinate": name, "state": "unsupported", "detail": ""}
            for name in STAGE_IDS if name in stages
        ]),
        ("intra_layer_trace", [
            e for e in trace["intra_layer_trace"] if e["stage_id"] not in stages
        ]),
    ) if layout else ()  # fmt: skip


@pytest.mark.contract("LIS-134", "LIS-136")
def test_missing_stages_widen_the_interval_and_are_listed():
    gone = ("mlp_norm_output", "post_attention_residual")
    trace = recapture().runs[CANDIDATE].trace
    found = localized(*rebound(*without(trace, *gone)))
    assert found.interval.notation == "(attention_output_projection, mlp_gate_projection]"
    assert found.interval.unobserved == ("post_attention_residual", "mlp_norm_output")
    assert found.secondary_reasons == ("pass4.asymmetric_coverage_retained",)
    assert found.coverage.reference_only == ("post_attention_residual", "mlp_norm_output")
    other = localized(*rebound(*without(recapture().runs[REFERENCE].trace, *gone), name=REFERENCE))
    assert other.secondary_reasons == ("pass4.asymmetric_coverage_retained",)
    assert other.coverage.candidate_only == ("post_attention_residual", "mlp_norm_output")
    start = localized(*rebound(*without(trace, *STAGE_IDS[:13])))
    assert start.interval.notation == "[selected_layer_entry, mlp_gate_projection]"
    none = localized(*rebound(*without(trace, *STAGE_IDS)))
    assert none.status == "insufficient_common_intra_layer_coverage"


@pytest.mark.contract("LIS-116", "LIS-128", "LIS-131", "LIS-133")
def test_parents_must_be_there_coherent_and_have_found_something():
    found = parents()
    authority, discovery = found.authority, found.discovery
    cases = [
        (replace(found, authority=None), "parent_missing"),
        (replace(found, discovery=None), "parent_missing"),
        (replace(found, reproduction=None), "parent_missing"),
        (replace(found, authority=replace(authority, contract_version="v2")),
         "parent_contract_unsupported"),
        (replace(found, authority=replace(authority, pass2_sha256="0" * 64)), "parent_incoherent"),
        (replace(found, authority=replace(authority, status="no_mismatch_in_captured_coverage")),
         "parent_no_mismatch"),
        (replace(found, authority=replace(authority, status="unsupported_checkpoint_layout")),
         "parent_family_unsupported"),
        (replace(found, authority=replace(authority, model_family="qwen3_dense_decoder")),
         "parent_family_unsupported"),
        (replace(found, authority=replace(authority, status="inconclusive")), "parent_blocked"),
        (replace(found, authority=replace(authority, disposition="exploratory_localization_only")),
         "parent_exploratory_only"),
        (replace(found, discovery=replace(discovery, target_layer=3)), "discovery_rebound_layer"),
        *((replace(found, discovery=replace(discovery, **change)),
           "discovery_rebound_semantics_changed")
          for change in ({"runtime_checkpoint_step": 7}, {"total_layer_count": 7},
                         {"interval": None})),
    ]  # fmt: skip
    for changed, code in cases:
        assert localized(changed).reason == f"pass4.{code}"
    none = localized(Parents(None, None, None))
    assert (none.pass2_sha256, none.pass3a_sha256, none.pass3b_sha256) == (None, None, None)


@pytest.mark.contract("LIS-128", "LIS-130")
def test_discovery_is_no_authority_and_an_old_generation_no_parent():
    found, first = parents(), generation(0)
    assert localized(replace(found, authority=found.discovery)).reason in (
        "pass4.parent_incoherent",
        "pass4.parent_missing",
    )
    old = replace(found, reproduction=first.reproduction, authority=first.layers)
    assert localized(old).reason == "pass4.parent_missing"
    mixed = replace(found, reproduction=first.reproduction)
    assert localized(mixed).reason == "pass4.parent_incoherent"


@pytest.mark.contract("LIS-129", "LIS-133")
def test_four_fresh_runs_are_needed():
    runs = dict(recapture().runs)
    three = {name: side for name, side in runs.items() if name != "original_reference"}
    reused = {**runs, "original_reference": runs[REFERENCE]}
    swapped = {**runs, "original_reference": replace(runs["original_reference"], role="candidate")}
    renamed = {name.replace("original_ref", "earlier_ref"): side for name, side in runs.items()}
    for wrong in (three, reused, swapped, renamed):
        assert localized(runs=Recapture(wrong)).reason == "pass4.source_role_mismatch"
    lost = {**runs, CANDIDATE: replace(runs[CANDIDATE], trace=None)}
    assert localized(runs=Recapture(lost)).reason == "pass4.runtime_capture_identity_mismatch"
    legacy = generation(0).rerun["reference"].side("reference")
    found = localized(runs=Recapture({**runs, REFERENCE: legacy}))
    assert found.reason == "pass4.run_report_binding_mismatch"
    plain = generation(0).original["reference"].side("reference")
    found = localized(runs=Recapture({**runs, "original_reference": plain}))
    assert found.reason == "pass4.runtime_capture_identity_mismatch"


@pytest.mark.contract("LIS-133")
def test_run_on_another_layer_is_not_the_bound_capture():
    found = parents()
    moved = replace(found.authority, target_layer=3)
    discovery = replace(found.discovery, target_layer=3)
    result = localized(replace(found, authority=moved, discovery=discovery))
    assert result.reason == "pass4.runtime_capture_identity_mismatch"


@pytest.mark.contract("LIS-127", "LIS-132", "LIS-133")
@pytest.mark.parametrize("name", [REFERENCE, CANDIDATE, "original_reference"])
def test_bindings_are_reported_before_broken_summaries(name):
    broken = ("intra_layer_trace.0.nan", True)
    cases = [
        (("artifact_set_id", "aset1:" + "0" * 32), "artifact_set_binding_mismatch"),
        (("manifest.runtime.generation_limit", 9), "semantic_manifest_binding_mismatch"),
    ]
    for change, code in cases:
        _, runs = rebound(broken, change, name=name, keep=True)
        assert localized(runs=runs).reason == f"pass4.{code}"
    _, runs = rebound(broken, name=name, keep=True)
    stale = replace(runs.runs[name], trace_sha256=recapture().runs[name].trace_sha256)
    assert localized(runs=Recapture({**runs.runs, name: stale})).reason == (
        "pass4.trace_sha_mismatch"
    )


@pytest.mark.contract("LIS-127", "LIS-132")
def test_trace_is_the_one_that_pass_3b_has_read():
    found, runs = rebound(("layer_trace.0.mean", 0.0), keep=True)
    assert localized(found, runs).reason == "pass4.trace_sha_mismatch"


@pytest.mark.contract("LIS-127")
def test_report_that_was_changed_under_its_set_id_is_refused():
    runs = dict(recapture().runs)
    side = runs[CANDIDATE]
    document = {**side.report.document, "future": 1}
    other = replace(side.report, document=document, sha256=canonical_sha(document))
    found = localized(runs=Recapture({**runs, CANDIDATE: replace(side, report=other)}))
    assert found.reason == "pass4.run_report_binding_mismatch"


MALFORMED = [
    (f"{LAYOUT}.layout_version", 2, "intra_layout_unsupported"),
    (f"{LAYOUT}.layout_name", "other", "intra_layout_unsupported"),
    (LAYOUT, DELETE, "intra_layout_unsupported"),
    (f"{LAYOUT}.stage_taxonomy", "other", "taxonomy_unsupported"),
    (f"{LAYOUT}.phase", "prefill", "phase_unsupported"),
    (f"{LAYOUT}.requested_coordinates", list(STAGE_IDS[:16]), "requested_stage_set_unsupported"),
    (f"{LAYOUT}.digest_contract.version", "other", "digest_contract_unknown"),
    (f"{LAYOUT}.digest_contract", DELETE, "digest_contract_unknown"),
    (f"{LAYOUT}.available_summary_fields", ["min"], "summary_field_malformed"),
    (f"{LAYOUT}.digest_contract.algorithm", "md5", "digest_policy_unsupported"),
    (f"{LAYOUT}.missing_coordinates",
     [{"coordinate": "layer_input", "state": "malformed", "detail": ""}],
     "coverage_partition_malformed"),
    (f"{LAYOUT}.captured_coordinates", [STAGE_IDS[1], STAGE_IDS[0], *STAGE_IDS[2:]],
     "duplicate_or_out_of_order_coordinate"),
    (f"{LAYOUT}.captured_coordinates", [STAGE_IDS[0], *STAGE_IDS],
     "duplicate_or_out_of_order_coordinate"),
    (f"{STAGE}.nan", True, "summary_field_malformed"),
    ("intra_layer_trace", "text", "summary_field_malformed"),
    (f"{STAGE}.digest.value", "sha256:00", "digest_field_malformed"),
    (f"{STAGE}.samples", [1.0], "prohibited_payload_present"),
    (f"{STAGE}.public_name", "/root/x", "prohibited_payload_present"),
]  # fmt: skip


@pytest.mark.contract("LIS-119", "LIS-121", "LIS-122", "LIS-133", "LIS-136")
@pytest.mark.parametrize(("path", "value", "code"), MALFORMED)
@pytest.mark.parametrize("name", [REFERENCE, CANDIDATE])
def test_layout_and_structure(path, value, code, name):
    found = localized(*rebound((path, value), name=name))
    assert found.reason == f"pass4.{code}"


@pytest.mark.contract("LIS-122", "LIS-136")
def test_entries_out_of_order_are_told_from_coverage():
    entries = recapture().runs[CANDIDATE].trace["intra_layer_trace"]
    found = localized(*rebound(("intra_layer_trace", entries[::-1])))
    assert found.reason == "pass4.duplicate_or_out_of_order_coordinate"


ALIGNMENT = [
    ([(f"{STAGE}.shape", [1, 8]), (f"{STAGE}.digest.shape", [1, 8])],
     "shape_or_count_alignment_mismatch"),
    ([(f"{STAGE}.precision_path", "bf16")], "dtype_or_precision_alignment_mismatch"),
]  # fmt: skip


@pytest.mark.contract("LIS-133", "LIS-136")
@pytest.mark.parametrize(("changes", "code"), ALIGNMENT)
def test_alignment_of_entries(changes, code):
    found = localized(*rebound(*changes))
    assert (found.reason, found.status) == (f"pass4.{code}", "checkpoint_alignment_inconsistent")


@pytest.mark.contract("LIS-133", "LIS-136")
def test_alignment_of_positions_and_steps():
    def moved(trace):
        return [
            (f"{LAYOUT}.token_position", 1),
            *(
                (f"intra_layer_trace.{index}.token_position", 1)
                for index in range(len(trace["intra_layer_trace"]))
            ),
        ]

    found = localized(*both(moved))
    assert found.reason == "pass4.phase_or_position_alignment_mismatch"
    later = parents()
    step = replace(later.authority, runtime_checkpoint_step=7)
    discovery = replace(later.discovery, runtime_checkpoint_step=7)
    stale = localized(replace(later, authority=step, discovery=discovery))
    assert stale.reason == "pass4.step_alignment_mismatch"


@pytest.mark.contract("LIS-136")
def test_layer_and_order_are_compared_though_readers_hold_them_too():
    trace = workflow()[1][3]["reference"]
    found = parents()
    value = load_layer_trace(trace.layers, PATH).value
    layout, entry = value.intra_layer_checkpoint_layout, value.intra_layer_trace[0]
    moved = replace(layout, target_layer=3)
    assert list(_alignment(layout, moved, found)) == ["pass4.layer_alignment_mismatch"]
    later = replace(layout, runtime_checkpoint_step=7)
    assert list(_alignment(layout, later, found)) == ["pass4.step_alignment_mismatch"]
    later = replace(entry, stage_order=1)
    assert list(_misplaced([(entry, later)])) == ["pass4.stage_role_or_order_alignment_mismatch"]


@pytest.mark.contract("LIS-136", "LIS-159")
def test_tables_are_whole():
    assert len(REASONS) == 36
    assert set(REASONS.values()) - {None} == set(get_args(differential.StageStatus))
    assert set(DISPOSITIONS) == set(get_args(differential.StageStatus))
    assert set(DISPOSITIONS.values()) == set(get_args(differential.StageDisposition))
    assert [code for code, status in REASONS.items() if status is None] == [
        "pass4.asymmetric_coverage_retained"
    ]
