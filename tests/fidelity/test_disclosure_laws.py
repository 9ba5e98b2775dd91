"""Laws 0, 8, 9 and 15: what a report and its page disclose, one change at a time."""

import msgspec
import numpy as np
import pytest

from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.laws import (
    LAWS_VERSION,
    contract_page,
    laws,
    may_relabel,
    required_actions,
    table_problems,
)
from cke.fidelity.page import owed
from cke.fidelity.statistics import Row, outlier_driven, strata_table, summary
from tests.fidelity.conftest import judged, lines_of
from tests.fidelity.mutation import Change, assert_fails, both, put, swap
from tests.fidelity.test_measurement_laws import APPROVAL, rendered

TAIL = ("median_kld", "p90_kld", "p99_kld", "max_kld", "depth_buckets", "top1_agreement")
LAW_8 = [
    ("8.1", put("report", "trunk_mean_kld")),
    ("8.1", put("report", "deployed_mean_kld")),
    ("8.1", put("report", "deployed_mean_kld", float("nan"))),
    ("8.1", both(put("report", "deployed_mean_kld", 9.0), put("report", "head_delta_kld", 9.0))),
    ("8.2", put("report", "head_delta_kld")),
    ("8.2", put("report", "student_lm_head")),
    ("8.2", put("report", "teacher_lm_head.weights_sha256")),
    ("8.3", put("report", "head_delta_kld", 1e-9)),
    ("8.6", put("report", "trunk_worker_agreement")),
    ("8.5", put("report", "trunk_worker_agreement.max_abs_delta", 2e-5)),
    ("8.5", put("report", "trunk_worker_agreement.mean_rel_delta", 2e-7)),
    ("8.5", put("report", "trunk_worker_agreement.max_abs_delta", float("nan"))),
]
LAW_9 = [
    *(("9.1", put("report", name)) for name in TAIL),
    ("9.3", put("report", "median_kld", 1e9)),
    ("9.3", put("report", "depth_buckets.0.n", 3)),
    ("9.3", put("report", "depth_buckets.0.mean_kld", 1.0)),
    ("9.2", swap("page", None)),
]
FIRST = "strata.0"
LAW_15 = [
    ("15.1", put("report", "strata")),
    *(
        ("15.2", put("report", f"{FIRST}.{name}"))
        for name in (
            *("contexts", "mean_kld", "median_context_mean", "p90_context_mean"),
            *("worst_context", "mean_ref_top1_prob"),
        )
    ),
    ("15.3", put("report", f"{FIRST}.stratum", "other")),
    ("15.3", put("report", "strata", lambda table: table[1:])),
    ("15.4", put("report", f"{FIRST}.contexts", 2)),
    ("15.5", put("report", "per_context")),
    ("15.5", put("report", "per_context", lambda table: table[1:])),
    ("15.5", put("report", "per_context.0.context_id", "context-9999")),
    ("15.5", put("report", "per_context.0.stratum", "other")),
    (
        "15.5",
        lambda e: put(
            "report", "per_context.0.context_id", e.report["per_context"][1]["context_id"]
        )(e),
    ),
    ("15.6", put("report", f"{FIRST}.mean_kld", lambda mean: 1.5 * mean)),
    ("15.7", put("report", f"{FIRST}.outlier_driven", True)),
    ("15.12", put("report", f"{FIRST}.positions", 99)),
    ("15.11", lambda e: _without_strata(e)),
]


def _without_strata(evidence: Evidence) -> Evidence:
    assert evidence.suite is not None
    manifest = {k: v for k, v in evidence.suite.manifest.items() if k != "strata"}
    suite = msgspec.structs.replace(evidence.suite, manifest=manifest)
    return msgspec.structs.replace(evidence, suite=suite)


@pytest.mark.contract(
    "LAW-8.1",
    "LAW-8.2",
    "LAW-8.3",
    "LAW-8.5",
    "LAW-8.6",
    "LAW-9.1",
    "LAW-9.2",
    "LAW-9.3",
    "LAW-15.1",
    "LAW-15.2",
    "LAW-15.3",
    "LAW-15.4",
    "LAW-15.5",
    "LAW-15.6",
    "LAW-15.7",
    "LAW-15.11",
    "LAW-15.12",
)
@pytest.mark.parametrize(("line", "change"), [*LAW_8, *LAW_9, *LAW_15])
def test_change_fails_its_line(evidence: Evidence, line: str, change: Change) -> None:
    assert_fails(evidence, change, line)


@pytest.mark.contract(
    "LAW-9.2", "LAW-4.4", "LAW-10.7", "LAW-0.7", "LAW-0.9", "LAW-8.6", "LAW-6.12", "LAW-15.1"
)
def test_page_without_anything_that_it_owes_fails(evidence: Evidence) -> None:
    assert evidence.page is not None
    items = owed(evidence)
    assert {line for line, *_ in items} >= {"0.7", "0.9", "4.4", "6.12", "8.6", "9.2", "15.1"}
    assert sum(line == "9.2" for line, *_ in items) >= 5 + 4
    for line, _, text in items:
        page = evidence.page.replace(text, "")
        assert line in lines_of(msgspec.structs.replace(evidence, page=page)), text


@pytest.mark.contract("LAW-13.2", "LAW-8.4")
def test_deviation_stands_in_the_line_of_every_mean(evidence: Evidence) -> None:
    changed = both(put("report", "trunk_mean_kld"), swap("approvals", {"8": dict(APPROVAL)}))(
        evidence
    )
    changed = rendered(changed)
    receipt = judged(changed)
    assert receipt.overridden_laws == (8,)
    assert receipt.compliant
    assert changed.page is not None
    lines = changed.page.splitlines()
    at = next(i for i, text in enumerate(lines) if text.startswith("mean_kld = "))
    lines[at] = lines[at].partition(" [")[0]
    moved = "\n".join([*lines, "", "Footnote: Law 8 overridden by Ada Example."])
    assert "13.2" in lines_of(msgspec.structs.replace(changed, page=moved))


@pytest.mark.contract("LAW-8.4")
def test_override_of_the_head_needs_the_proof_of_equal_heads(evidence: Evidence) -> None:
    changed = both(
        put("report", "trunk_mean_kld"),
        put("report", "student_lm_head.weights_sha256", "0" * 64),
        swap("approvals", {"8": dict(APPROVAL)}),
    )(evidence)
    assert 8 in judged(changed).failed_laws


@pytest.mark.contract("LAW-15.10", "LAW-15.11")
def test_suite_that_declares_one_stratum_is_not_applicable(evidence: Evidence) -> None:
    assert evidence.suite is not None
    for count in (0, 1):
        strata = evidence.suite.manifest["strata"][:count]
        manifest = {**evidence.suite.manifest, "strata": strata}
        suite = msgspec.structs.replace(evidence.suite, manifest=manifest)
        receipt = judged(msgspec.structs.replace(evidence, suite=suite))
        assert next(f for f in receipt.findings if f.law == 15).status == "not_applicable"


@pytest.mark.contract("LAW-15.11")
def test_override_of_the_domains_is_not_for_a_candidate_on_a_stratified_suite(
    evidence: Evidence,
) -> None:
    approvals = {"15": dict(APPROVAL)}
    changed = put("report", "strata")(msgspec.structs.replace(evidence, approvals=approvals))
    assert 15 in judged(changed).failed_laws
    baseline = msgspec.structs.replace(changed, role="baseline")
    assert 15 in judged(baseline).overridden_laws
    undescribed = _without_strata(msgspec.structs.replace(evidence, approvals=approvals))
    assert 15 in judged(undescribed).overridden_laws


@pytest.mark.contract("LAW-15.7")
@pytest.mark.parametrize(
    ("total", "median", "driven"),
    [(4.0, 1.0, True), (3.99, 1.0, False), (1.0, 0.0, True), (0.0, 0.0, False)],
)
def test_stratum_with_four_times_its_median_is_driven_by_outliers(
    total: float, median: float, driven: bool
) -> None:
    assert outlier_driven(total, median) == driven


def row(index: int, stratum: str, kld: list[float], top: float) -> Row:
    values = np.array(kld, np.float32)
    return Row(
        row=index,
        context_id=f"context-{index:04d}",
        stratum=stratum,
        cluster=str(index),
        kld=values,
        reverse=values,
        reference_top1=np.full(len(kld), top, np.float32),
        agreeing=np.full(len(kld), 5),
        trunk=(values,),
        trunk_top1=(values,),
    )


@pytest.mark.contract("LAW-15.6", "LAW-15.8")
def test_stratum_mean_is_weighted_by_positions_and_named_by_certainty() -> None:
    rows = [row(0, "a", [1.0], 0.9), row(1, "a", [3.0, 3.0, 3.0], 0.9), row(2, "b", [8.0], 0.1)]
    first, second = strata_table(rows)
    assert first["mean_kld"] == 2.5
    assert first["median_context_mean"] == 2.0
    assert first["worst_context"] == "context-0001"
    assert (first["reference_was"], second["reference_was"]) == ("confident", "uncertain")
    assert second["mean_kld"] == 8.0


def test_summary_of_known_rows() -> None:
    found = summary([row(0, "a", [0.0, 1.0, 2.0, 3.0], 0.5), row(1, "b", [4.0] * 4, 1.0)])
    assert found["mean_kld"] == 2.75
    assert found["median_kld"] == 3.5
    assert found["max_kld"] == 4.0
    assert [b["mean_kld"] for b in found["depth_buckets"]] == [2.0, 2.5, 3.0, 3.5]
    assert [b["n"] for b in found["confidence_buckets"]] == [0, 0, 4, 0, 4]
    assert found["nonzero_positions"] == 7
    assert found["topk_agreement"]["5"] == 1.0


@pytest.mark.contract("LAW-0.1", "LAW-0.2")
@pytest.mark.parametrize("version", [None, 14, "15", 16, True])
def test_result_of_another_version_is_rescored_and_not_relabelled(
    evidence: Evidence, version: object
) -> None:
    assert LAWS_VERSION == 15
    receipt = judged(rendered(put("report", "laws_version", version)(evidence)))
    assert 0 in receipt.failed_laws
    assert receipt.laws_version == version
    assert not receipt.compliant


@pytest.mark.contract("LAW-0.1")
def test_report_without_a_version_fails(evidence: Evidence) -> None:
    assert 0 not in judged(evidence).failed_laws
    assert 0 in judged(put("report", "laws_version")(evidence)).failed_laws


@pytest.mark.contract("LAW-0.3")
def test_change_of_a_law_without_a_new_version_is_a_problem() -> None:
    table = laws()
    assert table_problems(table) == []
    first, *rest = table.laws
    changed = msgspec.structs.replace(first, requirement="Something else.")
    altered = msgspec.structs.replace(table, laws=(changed, *rest))
    assert table_problems(altered) == [
        "the laws' text is not that of version 15: raise the version"
    ]


@pytest.mark.contract("LAW-0.4")
def test_laws_are_neither_reordered_nor_removed() -> None:
    table = laws()
    for order in ((*table.laws[:3], *reversed(table.laws[3:])), table.laws[:-1]):
        found = table_problems(msgspec.structs.replace(table, laws=tuple(order)))
        assert found[0].startswith("laws are append-only")


@pytest.mark.contract("LAW-0.8")
@pytest.mark.parametrize("part", ["title", "requirement", "reason", "check"])
def test_law_without_one_of_its_parts_is_a_problem(part: str) -> None:
    table = laws()
    broken = msgspec.structs.replace(table.laws[5], **{part: ""})
    altered = msgspec.structs.replace(table, laws=(*table.laws[:5], broken, *table.laws[6:]))
    assert "law 5 lacks one of its four parts" in table_problems(altered)


@pytest.mark.contract("LAW-0.9")
def test_status_is_draft_on_the_page_of_the_laws() -> None:
    assert laws().status == "draft"
    assert "status: draft" in contract_page()


DENSE = {"routed": False, "partly_quantized": False, "multi_worker": False}


@pytest.mark.contract("LAW-0.10", "LAW-0.12")
def test_transitions_say_what_moves_and_what_is_measured_again() -> None:
    actions = [(item.start, item.action) for item in required_actions(1, **DENSE)]
    assert actions == [
        (1, "reassemble"),
        (2, "rescore"),
        (3, "reassemble"),
        (4, "reassemble"),
        (5, "reassemble"),
        (6, "reassemble"),
        (7, "rescore_or_deviation"),
        (8, "reassemble"),
        (9, "reassemble"),
        (10, "reassemble"),
        (11, "reassemble"),
        (12, "rescore"),
        (13, "rescore_and_recapture"),
        (14, "rescore"),
    ]
    routed = [
        item.start
        for item in required_actions(1, **{**DENSE, "routed": True})
        if item.action == "rescore"
    ]
    assert routed == [1, 2, 3, 9, 10, 11, 12, 14]
    assert required_actions(5, **{**DENSE, "partly_quantized": True})[0].action == "rescore"
    assert required_actions(8, **{**DENSE, "multi_worker": True})[0].action == "rescore"
    assert not may_relabel(14, **DENSE)
    assert may_relabel(15, **DENSE)
