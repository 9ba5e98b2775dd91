"""Laws 1 to 5, one change at a time."""

import copy
import math

import msgspec
import pytest

from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.fields import BOUND, mismatches
from tests.fidelity.conftest import judged, lines_of
from tests.fidelity.mutation import Change, assert_fails, both, put, swap

NAN = math.nan
LAW_1 = [
    ("1.1", swap("self_report", None)),
    ("1.1", put("self_report", "student_weights_sha256", "0" * 64)),
    ("1.1", put("self_report", "capture_manifest_sha256", "0" * 64)),
    ("1.1", put("self_report", "scored_at", "2026-01-01T02:30:00+00:00")),
    *(("1.2", put("self_report", "mean_kld", v)) for v in (1e-300, -1e-300, NAN, "0.0", False)),
    ("1.2", put("self_report", "mean_kld")),
    *(("1.3", put("self_report", "num_positions", lambda n, d=d: n + d)) for d in (1, -1)),
    ("1.3", put("self_report", "num_positions")),
    ("1.4", put("self_report", "model_runner", "cke-compiled")),
    ("1.4", put("self_report", "tensor_parallel_size", 2)),
    *(("1.5", put("self_report", "kv_cache_dtype", v)) for v in ("fp8_e4m3", "int8", "auto", None)),
    ("1.5", put("self_report", "kv_cache_dtype")),
    ("1.10", put("self_report", "max_kld", 1e-12)),
    ("1.10", put("self_report", "min_kld", -1e-12)),
    ("1.10", put("self_report", "nonzero_positions", 1)),
]
LAW_2 = [
    ("2.1", put("manifest", "enforce_eager", False)),
    ("2.1", put("manifest", "enforce_eager")),
    ("2.1", put("report", "enforce_eager", False)),
    ("2.1", put("report", "enforce_eager")),
    ("2.2", put("report", "enable_prefix_caching", True)),
    ("2.2", put("manifest", "enable_prefix_caching")),
    ("2.3", put("report", "max_num_seqs")),
    ("2.3", put("report", "max_num_seqs", 0)),
    ("2.4", put("report", "autotuned_kernels", True)),
    ("2.4", put("report", "jit_kernel_selection", True)),
    ("2.4", put("report", "device_graphs", True)),
    ("2.4", put("manifest", "device_graphs")),
    ("2.5", put("report", "tensor_parallel_size")),
    ("2.5", put("report", "max_num_seqs", 2)),
    ("2.6", put("report", "kv_cache_dtype", "bfloat16")),
    ("2.6", put("manifest", "kv_cache_dtype", "fp8_e4m3")),
    ("2.7", put("report", "authoritative", False)),
    ("2.7", put("report", "authoritative")),
    ("2.9", put("report", "model_runner", "cke-compiled")),
]
LAW_3_4 = [
    ("3.1", swap("suite", None)),
    ("3.2", put("report", "token_sha256", "0" * 64)),
    ("3.2", put("manifest", "token_sha256", "0" * 64)),
    ("3.2", put("report", "token_sha256")),
    *(("4.1", put("report", "kld_vocab_size", lambda n, d=d: n + d)) for d in (1, -1)),
    ("4.1", put("report", "kld_vocab_size")),
    ("4.2", put("report", "declared_vocab_size", 60)),
    ("4.2", put("manifest", "declared_vocab_size")),
]


@pytest.mark.contract(
    "LAW-1.1",
    "LAW-1.2",
    "LAW-1.3",
    "LAW-1.4",
    "LAW-1.5",
    "LAW-1.10",
    "LAW-2.1",
    "LAW-2.2",
    "LAW-2.3",
    "LAW-2.4",
    "LAW-2.5",
    "LAW-2.6",
    "LAW-2.7",
    "LAW-2.9",
    "LAW-3.1",
    "LAW-3.2",
    "LAW-4.1",
    "LAW-4.2",
)
@pytest.mark.parametrize(("line", "change"), [*LAW_1, *LAW_2, *LAW_3_4])
def test_change_fails_its_line(evidence: Evidence, line: str, change: Change) -> None:
    assert_fails(evidence, change, line)


@pytest.mark.contract("LAW-1.2")
def test_negative_zero_is_zero(evidence: Evidence) -> None:
    assert lines_of(put("self_report", "mean_kld", -0.0)(evidence)) == set()


@pytest.mark.contract("LAW-1.5", "LAW-2.6")
def test_sides_may_cache_in_their_own_unquantized_dtypes(evidence: Evidence) -> None:
    changed = both(
        put("report", "kv_cache_dtype", "bfloat16"), put("report", "compute_dtype", "bfloat16")
    )(evidence)
    assert lines_of(changed) & {"1.5", "2.5", "2.6", "5.1"} == set()


@pytest.mark.contract("LAW-4.2")
def test_scored_vocabulary_may_equal_the_declared_one(evidence: Evidence) -> None:
    assert lines_of(put("report", "declared_vocab_size", 61)(evidence)) == set()


REPEATS = {
    "captures": 3,
    "pairwise": [
        {"pair": pair, "mean_kld": mean, "token_sha256": "t"}
        for pair, mean in (((0, 1), 1e-7), ((0, 2), 3e-7), ((1, 2), 2e-7))
    ],
}
APPROVAL = {
    "approver": "Ada Example",
    "justification": "the kernels of this board drift",
    "timestamp": "2026-01-01T00:30:00+00:00",
}


def drifting(evidence: Evidence, **changes: object) -> Evidence:
    """A non-zero baseline with all that an override of Law 1 needs, the page rendered anew."""
    evidence = both(
        put("self_report", "mean_kld", 1e-7),
        put("self_report", "max_kld", 1e-6),
        put("self_report", "nonzero_positions", 3),
        swap("repeat_study", copy.deepcopy(REPEATS)),
        swap("approvals", {"1": dict(APPROVAL)}),
    )(evidence)
    evidence = msgspec.structs.replace(evidence, **changes)
    return rendered(evidence)


def rendered(evidence: Evidence) -> Evidence:
    """The evidence with the page that it makes."""
    from cke.fidelity.page import blocks_of, markdown

    draft = judged(msgspec.structs.replace(evidence, page=None))
    page = markdown(blocks_of(evidence, draft))
    final = judged(msgspec.structs.replace(evidence, page=page))
    return msgspec.structs.replace(evidence, page=markdown(blocks_of(evidence, final)))


@pytest.mark.contract("LAW-1.6", "LAW-1.7")
def test_drifting_baseline_passes_only_as_a_whole_override(evidence: Evidence) -> None:
    changed = drifting(evidence)
    receipt = judged(changed)
    assert [item.detail for item in receipt.findings if item.status == "fail"] == []
    assert receipt.overridden_laws == (1,)
    assert receipt.compliant
    assert receipt.nondeterminism_floor == 3e-7
    assert changed.page is not None
    opening = changed.page.partition("\n## ")[0]
    assert "1e-07" in opening
    assert "3e-07" in opening


@pytest.mark.contract("LAW-1.6")
@pytest.mark.parametrize(
    "change",
    [
        {"approvals": {}},
        {"approvals": {"1": {**APPROVAL, "timestamp": "2026-01-01T02:00:00+00:00"}}},
        {"repeat_study": None},
        {"repeat_study": {**REPEATS, "captures": 2}},
        {"repeat_study": {**REPEATS, "pairwise": REPEATS["pairwise"][:2]}},  # type: ignore[index]
        {"repeat_study": {**REPEATS, "pairwise": [REPEATS["pairwise"][0]] * 3}},  # type: ignore[index]
    ],
)
def test_override_of_the_baseline_needs_all_three(
    evidence: Evidence, change: dict[str, object]
) -> None:
    receipt = judged(drifting(evidence, **change))
    assert 1 in receipt.failed_laws


@pytest.mark.contract("LAW-1.7", "LAW-13.2")
def test_drifting_baseline_outside_of_the_opening_section_fails(evidence: Evidence) -> None:
    changed = drifting(evidence)
    assert changed.page is not None
    moved = changed.page.replace("3e-07", "small")
    receipt = judged(msgspec.structs.replace(changed, page=moved))
    assert "1.7" in {line for f in receipt.findings for line in f.lines}
    assert 1 in receipt.failed_laws


@pytest.mark.contract("LAW-5.1", "LAW-5.3", "LAW-5.6", "LAW-10.12")
@pytest.mark.parametrize("name", [field.path for field in BOUND])
@pytest.mark.parametrize("absent", [False, True])
def test_bound_field_that_differs_or_is_missing_is_a_mismatch(
    evidence: Evidence, name: str, absent: bool
) -> None:
    assert evidence.manifest is not None
    assert mismatches(evidence.manifest, evidence.report) == []
    change = put("manifest", name) if absent else put("manifest", name, "other")
    changed = change(evidence)
    assert changed.manifest is not None
    found = mismatches(changed.manifest, changed.report)
    mine = [text for text in found if f"(`{name}`)" in text]
    assert len(mine) == 1
    assert ("nothing" if absent else "`other`") in mine[0]
    assert len(found) == 1 or name == "runtime.stack_profile"
    assert "5.1" in lines_of(changed)


@pytest.mark.contract("LAW-5.6")
def test_every_mismatch_is_listed_with_both_values(evidence: Evidence) -> None:
    changed = both(put("manifest", "rows", 7), put("manifest", "score_from", 5))(evidence)
    assert changed.manifest is not None
    found = mismatches(changed.manifest, changed.report)
    assert found == [
        "row count (`rows`): the capture has `7`, this run `3`",
        "score_from (`score_from`): the capture has `5`, this run `0`",
    ]


@pytest.mark.contract("LAW-5.2")
def test_capture_without_a_manifest_fails(evidence: Evidence) -> None:
    assert_fails(evidence, swap("manifest", None), "5.2")


@pytest.mark.contract("LAW-5.4", "LAW-10.5")
def test_commit_is_in_no_binding(evidence: Evidence) -> None:
    from cke.fidelity.fields import KEY, key_of

    before = key_of(evidence.report)
    assert not any("commit" in name or "dirty" in name for name in KEY)
    assert "numerics_digest" in KEY
    assert "commit" not in {field.path for field in BOUND}
    assert key_of({**evidence.report, "commit": "other"}) == before


NEVER = (2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 17)


@pytest.mark.contract(
    "LAW-13.3",
    "LAW-13.4",
    "LAW-2.8",
    "LAW-3.3",
    "LAW-6.11",
    "LAW-7.4",
    "LAW-9.4",
    "LAW-10.10",
    "LAW-17.14",
)
@pytest.mark.parametrize("number", NEVER)
def test_approval_of_a_law_without_override_does_not_help(evidence: Evidence, number: int) -> None:
    breaks = {
        2: put("report", "enforce_eager", False),
        3: put("report", "token_sha256", "0" * 64),
        4: put("report", "kld_vocab_size", 60),
        5: put("manifest", "rows", 9),
        6: put("environment", "commit", ""),
        7: put("manifest", "replay_probe"),
        9: put("report", "p99_kld"),
        10: put("report", "suite_id"),
        13: swap("approvals", {"1": {}}),
        14: put("manifest", "reference_routing"),
        17: put("report", "quantization_substitutions"),
    }
    changed = breaks[number](evidence)
    approvals = {**changed.approvals, f"law_{number}": dict(APPROVAL)}
    receipt = judged(msgspec.structs.replace(changed, approvals=approvals))
    assert number in receipt.failed_laws
    assert number not in receipt.overridden_laws


@pytest.mark.contract("LAW-13.5")
def test_unused_approval_is_reported_and_turns_no_pass_into_an_override(evidence: Evidence) -> None:
    receipt = judged(msgspec.structs.replace(evidence, approvals={"8": dict(APPROVAL)}))
    assert receipt.overridden_laws == ()
    assert receipt.unused_approvals == ("8",)


@pytest.mark.contract("LAW-13.1")
@pytest.mark.parametrize("name", ["approver", "justification", "timestamp"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_incomplete_approval_fails(evidence: Evidence, name: str, value: str | None) -> None:
    entry = {**APPROVAL, name: value}
    changed = msgspec.structs.replace(evidence, approvals={"8": entry})
    receipt = judged(changed)
    assert 13 in receipt.failed_laws
    assert "13.1" in lines_of(changed)
