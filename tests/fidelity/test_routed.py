"""Law 14: QxQ and BxQ of a routed model, exact repeats, and what each broken binding does."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from cke.api import load
from cke.api.fidelity import open_subject, quantise, subject_of
from cke.errors import CkeError
from cke.fidelity.capture import CaptureRequest, capture
from cke.fidelity.capture_reader import Capture
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.checks.routed import SYNTHETIC
from cke.fidelity.digests import file_sha256
from cke.fidelity.paired import TRACE, capture_trace, parity_problems, read_trace, run_paired
from cke.fidelity.routing import RouteControl, divergence, trace_problems
from cke.fidelity.score import score
from cke.fidelity.subject import Subject
from cke.fidelity.suite import pretty
from cke.fidelity.suite_reader import Suite
from cke.schemas.reading import canonical_sha256, read_json
from tests.fidelity.conftest import TIMES, Tiny, judged, lines_of, tiny_suite
from tests.fidelity.mutation import Change, both, put, swap
from tests.fidelity.test_measurement_laws import rendered
from tests.models import TinyModel

pytestmark = pytest.mark.slow
SMALL = {"num_hidden_layers": 2, "vocab_size": 64, "moe_intermediate_size": 32, "num_experts": 4}


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """A routed campaign: teacher, capture, trace, candidate, and its paired result."""

    root: Path
    suite: Suite
    reference: Subject
    capture: Capture
    candidate: Subject
    report: dict[str, Any]
    paired: dict[str, Any]


@pytest.fixture(scope="session")
def routed(tmp_path_factory: pytest.TempPathFactory, tiny_model: TinyModel) -> Routed:
    root = tmp_path_factory.mktemp("routed")
    suite = tiny_suite(root / "suite", length=9)
    model = load(tiny_model("qwen3_moe", **SMALL))
    reference = subject_of(model)
    capture(reference, suite, CaptureRequest(limit=2), root / "capture")
    taken = Capture(root / "capture")
    capture_trace(reference, taken, suite, root / "trace")
    quantise(model, "int4", root / "int4")
    candidate = open_subject(root / "int4")
    report = score(taken, suite, lambda: candidate, root / "score", clock=lambda: TIMES["int8"])
    assert report is not None
    paired = run_paired(candidate, taken, suite, root / "trace", report)
    return Routed(
        root=root,
        suite=suite,
        reference=reference,
        capture=taken,
        candidate=candidate,
        report=report,
        paired=msgspec.json.decode(msgspec.json.encode(paired)),
    )


@pytest.fixture
def evidence(routed: Routed, tiny: Tiny) -> Evidence:
    """The evidence of the routed candidate; laws of the artifact have their own tests."""
    baseline = {
        **routed.report,
        "student_weights_sha256": routed.report["reference_weights_sha256"],
    }
    found = Evidence(
        report=routed.report,
        manifest=routed.capture.manifest,
        self_report=baseline,
        environment=None,
        suite=routed.suite,
        reference=routed.capture.manifest,
        contents=None,
        inspection=routed.report["inspection"],
        live={},
        approvals={},
        routing=routed.paired,
    )
    return rendered(copy.deepcopy(found))


def law_14(evidence: Evidence) -> Any:
    return next(item for item in judged(evidence).findings if item.law == 14)


@pytest.mark.contract("LAW-14.1", "LAW-14.2", "LAW-14.5", "LAW-14.10", "LAW-14.11", "LAW-14.22")
def test_paired_result_of_a_routed_candidate_holds(evidence: Evidence, routed: Routed) -> None:
    assert law_14(evidence).detail == ()
    assert law_14(evidence).status == "pass"
    assert routed.paired["qxq_cell"]["mean_kld"] == routed.report["mean_kld"] > 0
    assert routed.paired["bxq_cell"]["mean_kld"] != routed.report["mean_kld"]
    assert routed.report["inspection"]["routed"] is True
    assert {layer["operator"] for layer in routed.report["inspection"]["layers"]} == {
        "linear",
        "expert_linear",
    }


def cell(name: str, path: str, *value: Any) -> Change:
    return put("routing", f"{name}_cell.{path}", *value)


MUTATIONS = [
    ("14.1", swap("routing", None)),
    ("14.1", put("manifest", "reference_routing")),
    ("14.1", put("routing", "qxq_cell")),
    ("14.1", put("routing", "bxq_cell")),
    *(
        ("14.4", cell(name, binding, "other"))
        for name in ("qxq", "bxq")
        for binding in (
            "partition",
            "token_sha256",
            "reference_config_sha256",
            "candidate_weights_sha256",
        )
    ),
    ("14.4", cell("qxq", "report")),
    ("14.4", cell("bxq", "mean_kld")),
    ("14.5", cell("qxq", "mean_kld", lambda mean: mean * (1 + 1e-15))),
    ("14.6", cell("bxq", "routing_trace_sha256", "short")),
    ("14.6", cell("bxq", "routing_mode", "student_ids")),
    *(("14.6", cell("bxq", "protocol_version", version)) for version in (1, 2, 3, 4)),
    *(("0.11", put("routing", "protocol_version", version)) for version in (1, 2, 3, 4)),
    ("14.7", cell("bxq", "routing_trace_sha256", "0" * 64)),
    ("14.7", put("routing", "trace")),
    *(
        ("14.7", put("routing", f"trace.{name}", "other"))
        for name in (
            "token_sha256",
            "reference_weights_sha256",
            "capture_manifest_sha256",
            "num_experts",
            "runtime",
            "routing_method",
        )
    ),
    ("14.7", put("routing", "trace.layer_map", [1, 0])),
    ("14.3", put("routing", "trace.num_layers", 3)),
    ("14.8", put("routing", "backend_evidence.kernel", "")),
    ("14.8", put("routing", "backend_evidence.replay_supported", False)),
    ("14.8", put("routing", "backend_evidence.replay_supported")),
    ("14.9", put("routing", "backend_evidence.same_kernel_path", False)),
    *(
        ("14.10", put("routing", f"controls.{name}", lambda runs: runs[:1]))
        for name in ("natural", "forced_natural", "bxq")
    ),
    *(
        ("14.11", put("routing", f"controls.{name}.1.{digest}", "0" * 64))
        for name in ("natural", "forced_natural", "bxq")
        for digest in ("ids_sha256", "kld_sha256")
    ),
    ("14.14", put("routing", "natural_control_parity.passed", False)),
    ("14.14", put("routing", "controls.bxq.0.kld_sha256", "0" * 64)),
    ("14.15", put("routing", "candidate_weights_unchanged", False)),
    ("14.16", put("routing", "controls.forced_natural.0.bound_ids_sha256", "0" * 64)),
    *(
        ("14.17", put("routing", f"natural_divergence.{name}"))
        for name in ("selection_flip_rate", "position_flip_rate", "per_layer_flip_rate")
    ),
    ("14.19", cell("bxq", "conditioned", "held")),
    ("14.20", put("routing", "routing_intervention_delta", 0.0)),
    ("14.20", put("routing", "routing_intervention_delta")),
    *(("14.21", cell("bxq", "derived_from", name)) for name in SYNTHETIC),
    ("14.22", cell("qxq", "strata")),
    ("14.26", put("routing", "natural_divergence", None)),
    (
        "14.26",
        both(
            put("routing", "natural_divergence.state", "measured"),
            put("routing", "natural_divergence.routing_excess_mean", None),
        ),
    ),
    ("15.9", cell("bxq", "strata", lambda table: table[1:])),
    ("15.9", cell("qxq", "strata.0.worst_context")),
]


@pytest.mark.contract(
    "LAW-0.11",
    "LAW-14.1",
    "LAW-14.3",
    "LAW-14.4",
    "LAW-14.5",
    "LAW-14.6",
    "LAW-14.7",
    "LAW-14.8",
    "LAW-14.9",
    "LAW-14.10",
    "LAW-14.11",
    "LAW-14.14",
    "LAW-14.15",
    "LAW-14.16",
    "LAW-14.17",
    "LAW-14.19",
    "LAW-14.20",
    "LAW-14.21",
    "LAW-14.22",
    "LAW-14.23",
    "LAW-14.26",
    "LAW-15.9",
)
@pytest.mark.parametrize(("line", "change"), MUTATIONS)
def test_change_fails_its_line(evidence: Evidence, line: str, change: Change) -> None:
    assert line not in lines_of(evidence)
    assert line in lines_of(change(evidence))


@pytest.mark.contract("LAW-14.18", "LAW-14.4")
def test_saturated_routing_is_stated_and_its_page_says_so(evidence: Evidence) -> None:
    changed = both(
        put("routing", "natural_divergence.state", "saturated"),
        put("routing", "natural_divergence.saturated", "all rerouted"),
        put("routing", "natural_divergence.routing_excess_mean", None),
    )(evidence)
    assert "14.18" in lines_of(changed)
    changed = rendered(changed)
    assert law_14(changed).status == "pass"
    assert changed.page is not None
    assert "saturated, all rerouted: the mean is unranked" in changed.page
    unstated = put("routing", "natural_divergence.saturated", None)(changed)
    assert "14.18" in lines_of(unstated)
    letters = changed.page.replace("The first letter is the source of the expert IDs", "")
    assert "14.4" in lines_of(msgspec.structs.replace(changed, page=letters))


@pytest.mark.contract("LAW-14.1")
def test_dense_reference_is_not_applicable(evidence: Evidence) -> None:
    changed = put("manifest", "reference_routing", None)(evidence)
    assert law_14(changed).status == "not_applicable"


@pytest.mark.contract("LAW-17.11")
def test_page_says_that_a_substitution_in_both_cells_cancels_in_part(evidence: Evidence) -> None:
    entry = {
        "parameter": "s",
        "kind": "k",
        "replacement": "r",
        "affected_layers": 1,
        "scored_layers": 1,
        "worst_spread": 2.0,
    }
    changed = put("report", "quantization_substitutions", [entry])(evidence)
    assert "17.11" in lines_of(changed)
    assert "17.11" not in lines_of(rendered(changed))


@pytest.mark.contract("LAW-14.12", "LAW-14.13")
def test_drift_is_a_diagnostic_and_never_an_excuse(evidence: Evidence) -> None:
    changed = both(
        put("routing", "natural_control_parity.spans.natural", 1e-12),
        put("routing", "controls.natural.1.kld_sha256", "0" * 64),
        put("routing", "natural_control_parity.passed", True),
    )(evidence)
    assert {"14.11", "14.14"} <= lines_of(changed)
    named = put("routing", "backend_evidence.kernel", "any name at all")(evidence)
    assert "14.8" not in lines_of(named)


@pytest.mark.contract("LAW-14.2", "LAW-14.3")
def test_forced_ids_enter_and_the_student_weighs_them(routed: Routed) -> None:
    control = RouteControl()
    subject = routed.candidate.with_functions({"route": control})
    tokens = np.array(routed.suite.contexts[0].token_ids, np.int32)
    control.begin()
    natural = np.asarray(subject.hidden(tokens))
    own = control.ids()
    control.begin(own)
    np.testing.assert_array_equal(np.asarray(subject.hidden(tokens)), natural)
    other = (own + 1) % 4
    control.begin(other)
    forced = np.asarray(subject.hidden(tokens))
    np.testing.assert_array_equal(control.ids(), other)
    assert not np.array_equal(forced, natural)
    np.testing.assert_array_equal(np.asarray(routed.candidate.hidden(tokens)), natural)


@pytest.mark.contract("LAW-14.7", "LAW-14.23")
def test_trace_of_another_binding_is_refused(routed: Routed) -> None:
    path = routed.root / "trace" / TRACE
    whole = path.read_bytes()
    try:
        for name in (
            "token_sha256",
            "rows",
            "layer_map",
            "num_experts",
            "protocol_version",
            "reference_weights_sha256",
            "capture_manifest_sha256",
            "runtime",
        ):
            path.write_bytes(pretty({**read_json(path), name: "other"}))
            with pytest.raises(CkeError, match=rf"error\[CKE881\]: `{name}`: the trace has"):
                read_trace(path.parent, routed.capture, routed.candidate)
            path.write_bytes(whole)
    finally:
        path.write_bytes(whole)
    manifest, _ = read_trace(path.parent, routed.capture, routed.candidate)
    assert canonical_sha256(manifest) == routed.paired["bxq_cell"]["routing_trace_sha256"]


@pytest.mark.contract("LAW-14.25", "LAW-14.23")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda ids: np.concatenate([ids[..., :1], ids[..., :1]], -1),
            "an expert twice in one row",
        ),
        (lambda ids: np.where(ids == ids[0, 0, 0], 9, ids), "an id outside 0 to 3"),
        (lambda ids: ids[..., :1], "expects ids"),
        (lambda ids: ids[:1], "expects ids"),
    ],
)
def test_trace_that_cannot_be_replayed_is_refused(
    routed: Routed, change: Any, expected: str
) -> None:
    row = routed.root / "trace" / "rows" / "row-0000.safetensors"
    path = routed.root / "trace" / TRACE
    contents = [item.read_bytes() for item in (row, path)]
    try:
        ids = load_arrays(row.read_bytes())["ids"]
        row.write_bytes(save_arrays({"ids": np.ascontiguousarray(change(ids), np.int32)}))
        with pytest.raises(CkeError, match="is not the file that the trace names"):
            read_trace(path.parent, routed.capture, routed.candidate)
        manifest = read_json(path)
        manifest["file_hashes"]["rows/row-0000.safetensors"] = file_sha256(row)
        path.write_bytes(pretty(manifest))
        with pytest.raises(CkeError, match=expected):
            read_trace(path.parent, routed.capture, routed.candidate)
    finally:
        for item, content in zip((row, path), contents, strict=True):
            item.write_bytes(content)


@pytest.mark.contract("LAW-14.11")
def test_one_id_or_one_position_breaks_parity(routed: Routed) -> None:
    controls = routed.paired["controls"]
    assert parity_problems(controls) == []
    for name in controls:
        for digest in ("ids_sha256", "kld_sha256"):
            changed = copy.deepcopy(controls)
            changed[name][1][digest] = "0" * 64
            assert f"the `{name}` runs differ in `{digest}`" in parity_problems(changed)


@pytest.mark.contract("LAW-14.17", "LAW-14.18")
def test_divergence_of_known_routes() -> None:
    teacher = [np.array([[[0, 1], [2, 3], [0, 1]]], np.int32)]
    student = [np.array([[[1, 0], [2, 0], [0, 1]]], np.int32)]
    kld = [np.array([1.0, 5.0, 3.0], np.float32)]
    found = divergence(teacher, student, kld, 0)
    assert found["selection_flip_rate"] == pytest.approx(1 / 3)
    assert found["slot_disagreement_rate"] == pytest.approx(3 / 6)
    assert found["top1_expert_change_rate"] == pytest.approx(1 / 3)
    assert (found["mean_kld_routing_held"], found["mean_kld_routing_flipped"]) == (2.0, 5.0)
    assert found["routing_excess_mean"] == pytest.approx((1 / 3) * 3.0)
    assert [b["n"] for b in found["buckets"]] == [2, 1, 0, 0, 0]
    same = divergence(teacher, teacher, kld, 0)
    assert (same["state"], same["saturated"]) == ("saturated", "none rerouted")
    assert same["routing_excess_mean"] is None
    assert trace_problems(teacher[0], 1, 3, {"num_experts": 4, "num_experts_per_tok": 2}) == []
