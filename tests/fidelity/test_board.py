"""The leaderboard, intervals, and assembly of a family."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cke.errors import CkeError
from cke.fidelity.artifact import assemble
from cke.fidelity.bootstrap import interval, paired_interval, resolved
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.gather import gather
from cke.fidelity.leaderboard import Entry, leaderboard, rank_together, render
from cke.fidelity.suite import pretty
from cke.schemas.reading import read_json
from tests.fidelity.conftest import TIMES, Tiny, campaign_of


def entry(evidence: Evidence, name: str, factor: float, **changes: Any) -> Entry:
    """A result whose every context diverges `factor` times as much."""
    report = copy.deepcopy(evidence.report)
    report["student_model"] = name
    report["student_weights_sha256"] = name.encode().hex().ljust(64, "0")[:64]
    report["mean_kld"] *= factor
    for record in report["per_context"]:
        record["mean_kld"] *= factor
    report |= changes.pop("report", {})
    return Entry(report=report, compliant=True, **changes)


SUBSTITUTED = {
    "report": {
        "quantization_substitutions": [{"parameter": "weight_global_scale", "worst_spread": 2.0}]
    }
}


@pytest.mark.contract("LAW-10.2", "LAW-10.3", "LAW-17.8")
def test_substituted_row_stays_in_its_section_marked_and_ranks_apart(evidence: Evidence) -> None:
    entries = [
        entry(evidence, "a", 1.0),
        entry(evidence, "b", 2.0, **copy.deepcopy(SUBSTITUTED)),
        entry(evidence, "c", 3.0),
    ]
    (lines,) = leaderboard(entries).values()
    assert [(line.candidate, line.rank, line.mark) for line in lines] == [
        ("a", 1, ""),
        ("b", 1, "†"),
        ("c", 2, ""),
    ]
    assert "weight_global_scale substituted" in lines[1].note
    assert "| 1 | b† |" in render({"0" * 64: lines})


@pytest.mark.contract("LAW-10.2")
def test_ranking_over_two_keys_is_refused(evidence: Evidence) -> None:
    first, second = (
        entry(evidence, "a", 1.0),
        entry(evidence, "b", 2.0, report={"suite_id": "other"}),
    )
    with pytest.raises(CkeError, match=r"error\[CKE880\]: a ranking holds results of one"):
        rank_together([first, second])
    assert len(leaderboard([first, second])) == 2


@pytest.mark.contract("LAW-10.1", "LAW-0.5")
def test_row_without_a_whole_key_or_not_compliant_is_refused(evidence: Evidence) -> None:
    with pytest.raises(CkeError, match="`suite_id` has no value in the comparability key"):
        leaderboard([entry(evidence, "a", 1.0, report={"suite_id": None})])
    failing = Entry(report=evidence.report, compliant=False)
    with pytest.raises(CkeError, match="is not compliant"):
        leaderboard([failing])


@pytest.mark.contract("LAW-1.8", "LAW-1.9")
def test_difference_within_the_repeat_spread_is_no_result(evidence: Evidence) -> None:
    mean = evidence.report["mean_kld"]
    for factor, rank in ((1.5, 1), (1.51, 2)):
        entries = [
            entry(evidence, "a", 1.0, repeat_floor=0.5 * mean, repeated=True),
            entry(evidence, "b", factor, repeat_floor=0.5 * mean, repeated=True),
        ]
        (lines,) = leaderboard(entries).values()
        assert lines[1].rank == rank
    (lines,) = leaderboard([entry(evidence, "a", 1.0, repeat_floor=mean)]).values()
    assert lines[0].rank is None
    assert "repeated candidate captures" in lines[0].note


@pytest.mark.contract("LAW-14.26", "LAW-14.18")
def test_routing_term_is_the_ranking_floor_and_saturation_has_no_rank(evidence: Evidence) -> None:
    mean = evidence.report["mean_kld"]
    entries = [entry(evidence, "a", 1.0, routing_floor=mean), entry(evidence, "b", 1.5)]
    (lines,) = leaderboard(entries).values()
    assert [line.rank for line in lines] == [1, 1]
    assert "closer than the routing term" in lines[1].note
    (lines,) = leaderboard([entry(evidence, "a", 1.0, saturated=True)]).values()
    assert (lines[0].rank, lines[0].note) == (None, "routing is saturated")


def test_baseline_has_no_rank(evidence: Evidence) -> None:
    own = {"reference_weights_sha256": b"a".hex().ljust(64, "0")}
    (lines,) = leaderboard([entry(evidence, "a", 1.0, report=own)]).values()
    assert lines[0].rank is None


def test_excluded_candidate_says_why_and_is_not_active(evidence: Evidence) -> None:
    excluded = {"candidate": "q4_1", "repository": "r", "revision": "1", "reason": "its own grid"}
    leaderboard([entry(evidence, "a", 1.0)], [excluded])
    with pytest.raises(CkeError, match="an excluded candidate lacks `reason`"):
        leaderboard([entry(evidence, "a", 1.0)], [{**excluded, "reason": ""}])
    with pytest.raises(CkeError, match="`a` is excluded and active"):
        leaderboard([entry(evidence, "a", 1.0)], [{**excluded, "candidate": "a"}])


def records(means: list[float]) -> list[dict[str, Any]]:
    return [
        {"source_cluster_id": str(index // 2), "mean_kld": value, "positions": 10}
        for index, value in enumerate(means)
    ]


def test_paired_interval_resolves_what_separate_intervals_do_not() -> None:
    base = [float(value) for value in np.random.default_rng(0).uniform(1, 9, 40)]
    worse = [value + 0.1 for value in base]
    first, second = interval(records(base)), interval(records(worse))
    assert first[0] < second[0] < first[1]
    assert resolved(paired_interval(records(worse), records(base)))
    noisy = [v + n for v, n in zip(base, np.random.default_rng(1).normal(0, 1, 40), strict=True)]
    assert not resolved(paired_interval(records(noisy), records(base)))


@pytest.mark.contract("LAW-16.4")
def test_assembly_refuses_one_mean_of_two_weights(tiny: Tiny, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(tiny.root, tmp_path / "root"))
    path = root / "score-nvfp4" / "report.json"
    known = read_json(root / "score-int8" / "report.json")["mean_kld"]
    path.write_bytes(pretty({**read_json(path), "mean_kld": known}))
    with pytest.raises(CkeError, match="have one mean and different weights: both are withdrawn"):
        assemble(campaign_of(root), root / "new", gather, lambda: TIMES["judged"])
    assert not root.joinpath("new").exists()


@pytest.mark.contract("LAW-16.5")
def test_re_upload_is_published_once_and_named(tiny: Tiny, tmp_path: Path) -> None:
    import msgspec

    campaign = campaign_of(tiny.root)
    twice = {**campaign.candidates, "again": tiny.root / "score-int8"}
    changed = msgspec.structs.replace(campaign, candidates=twice)
    assemble(changed, tmp_path / "artifact", gather, lambda: TIMES["judged"])
    found = read_json(tmp_path / "artifact" / "duplicates.json")
    assert found == [{"candidate": "int8", "re_upload_of": "again"}]


@pytest.mark.contract("LAW-0.5")
def test_compliant_artifact_is_not_replaced_by_a_failing_one(tiny: Tiny, tmp_path: Path) -> None:
    import shutil

    import msgspec

    out = Path(shutil.copytree(tiny.artifact, tmp_path / "artifact"))
    campaign = campaign_of(tiny.root)
    stale = msgspec.structs.replace(
        campaign, environment={**campaign.environment, "commit": "0" * 40}
    )
    with pytest.raises(CkeError, match=r"error\[CKE876\]: `int8` was compliant"):
        assemble(stale, out, gather, lambda: TIMES["judged"])
    assert read_json(out / "models" / "int8" / "receipt.json")["compliant"] is True
    assemble(stale, out, gather, lambda: TIMES["judged"], force=True)
    assert read_json(out / "models" / "int8" / "receipt.json")["failed_laws"] == [6]
