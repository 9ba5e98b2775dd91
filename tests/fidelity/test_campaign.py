"""A campaign from the suite to the artifact: what holds of a clean one."""

import pytest

from cke.fidelity.checks.evidence import Evidence
from cke.schemas.reading import read_json
from tests.fidelity.conftest import Tiny, judged


def test_clean_campaign_is_compliant(evidence: Evidence) -> None:
    receipt = judged(evidence)
    assert [(f.law, f.detail) for f in receipt.findings if f.status == "fail"] == []
    assert receipt.compliant
    assert receipt.failed_laws == ()


@pytest.mark.contract("LAW-1.1", "LAW-1.2", "LAW-1.10")
def test_zero_baseline_is_zero_at_every_position(tiny: Tiny) -> None:
    report = read_json(tiny.root / "baseline" / "report.json")
    assert report["mean_kld"] == 0.0
    assert (report["max_kld"], report["min_kld"], report["nonzero_positions"]) == (0.0, 0.0, 0)
    assert report["trunk_mean_kld"] == 0.0
    assert report["num_positions"] == 3 * 16
