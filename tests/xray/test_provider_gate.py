"""A provider is promoted only when no row of its gate regresses."""

import difflib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cke.api.promote import write_promotion
from cke.cli import main
from cke.errors import CkeError
from cke.errors.files import write_atomically
from cke.kernel_registry.contract_files import read_contracts
from cke.kernel_registry.resolve import contract_of
from cke.runtime.schedule import CaptureRequest
from cke.schemas.numerical_report import Report
from cke.schemas.provider_gate import EPSILON, Document
from cke.xray.diff import diff_traces
from cke.xray.provider_gate import provider_gate, told
from tests.models import TinyModel
from tests.xray.synthetic import write_trace

REQUEST = CaptureRequest(tokens=((1, 2, 3),))
INCUMBENT, CANDIDATE = contract_of("sdpa"), contract_of("sdpa_context")
ORACLE = np.linspace(1, 2, 12, dtype=np.float32).reshape(1, 3, 4)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """Two equal runs against one oracle; the second is the candidate's."""
    folder = tmp_path_factory.mktemp("gate")
    axes = ("B", "T", "D")
    logits = ("logits", ("B", "T", "V"), ORACLE)
    theirs = write_trace(
        folder / "oracle", REQUEST, [("layer.0.context", axes, ORACLE), logits], "oracle"
    )
    mine = [("layer.0.context", axes, ORACLE * np.float32(1 + 1e-6)), logits]
    before = diff_traces(write_trace(folder / "before", REQUEST, mine), theirs)
    rows = tuple(
        msgspec.structs.replace(row, kernel_id=CANDIDATE.id if row.layer == 0 else None)
        for row in before.rows
    )
    return before, msgspec.structs.replace(before, rows=rows)


def _moved(report: Report, metric: str, by: float) -> Report:
    """Return the report with one metric of its first row larger."""
    first, *rest = report.rows
    assert first.metrics is not None
    value = getattr(first.metrics, metric)
    metrics = msgspec.structs.replace(first.metrics, **{metric: value + by})
    row = msgspec.structs.replace(first, metrics=metrics)
    return msgspec.structs.replace(report, rows=(row, *rest))


@pytest.mark.contract("XRAY-26")
def test_equal_rows_promote(reports: tuple[Report, Report]) -> None:
    gate = provider_gate(INCUMBENT, CANDIDATE, *reports)
    assert (gate.promoted, gate.reasons, gate.calls) == (True, (), 1)
    assert gate.epsilon == EPSILON == 1e-12
    assert {row.state for row in gate.rows} == {"equal"}


@pytest.mark.contract("XRAY-26")
@pytest.mark.parametrize("metric", ["relative_rmse", "max_abs"])
@pytest.mark.parametrize(("by", "state"), [(3e-12, "worse"), (1e-13, "equal"), (-3e-12, "better")])
def test_one_row_that_regresses_by_more_than_epsilon_refuses(
    metric: str, by: float, state: str, reports: tuple[Report, Report]
) -> None:
    before, after = reports
    gate = provider_gate(INCUMBENT, CANDIDATE, before, _moved(after, metric, by))
    assert gate.rows[0].state == state
    assert gate.promoted is (state != "worse")
    if state == "worse":
        assert gate.reasons == ("1 of 2 rows regress, first layer.0.context",)


@pytest.mark.contract("XRAY-26")
def test_missing_evidence_never_promotes(reports: tuple[Report, Report]) -> None:
    before, after = reports
    fewer = msgspec.structs.replace(after, rows=after.rows[:1])
    assert provider_gate(INCUMBENT, CANDIDATE, before, fewer).reasons == (
        "1 rows are in one run only, first logits",
    )
    assert provider_gate(INCUMBENT, CANDIDATE, before, before).reasons == (
        "no compared row was made by `sdpa_context`: nothing was shown",
    )
    unknown = msgspec.structs.replace(after, oracle={**after.oracle, "trace_sha256": "0"})
    assert "different traces" in provider_gate(INCUMBENT, CANDIDATE, before, unknown).reasons[0]
    flips = tuple(msgspec.structs.replace(r, flips=((0, 1),)) for r in after.rankings)
    flipped = msgspec.structs.replace(after, rankings=flips)
    assert "first token flips" in provider_gate(INCUMBENT, CANDIDATE, before, flipped).reasons[0]


@pytest.mark.contract("XRAY-26")
def test_group_and_validation_are_part_of_the_gate(reports: tuple[Report, Report]) -> None:
    other = msgspec.structs.replace(
        CANDIDATE,
        equivalence_group="other",
        validation=msgspec.structs.replace(CANDIDATE.validation, state="observed"),
    )
    assert provider_gate(INCUMBENT, other, *reports).reasons == (
        "`sdpa_context` is of group `other`, `sdpa` of `sdpa`",
        "`sdpa_context` is observed, and must be validated",
    )


def test_the_worst_rows_are_told(reports: tuple[Report, Report]) -> None:
    before, after = reports
    text = told(provider_gate(INCUMBENT, CANDIDATE, before, _moved(after, "max_abs", 1.0)))
    assert text.startswith("`sdpa_context` may not take the place of `sdpa`")
    assert "  no: 1 of 2 rows regress, first layer.0.context" in text
    assert "layer.0.context in forward 0: relative RMSE" in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.slow
@pytest.mark.contract("XRAY-26")
def test_a_model_runs_under_both_providers(
    tiny_model: TinyModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shipped: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cke.api.promote.resources", lambda _: shipped)
    before = _texts(shipped)
    words = ["kernel", "promote", "sdpa_context", "--model", str(tiny_model("llama")), "--write"]
    code = main([*words, "--out", str(tmp_path), "--format", "json"])
    gate = msgspec.json.decode(tmp_path.joinpath("gate.json").read_bytes(), type=Document).body
    assert code == (0 if gate.promoted else 1)
    assert json.loads(capsys.readouterr().out)["body"]["candidate"] == gate.candidate
    assert (gate.incumbent, gate.candidate) == ("sdpa", "sdpa_context")
    assert gate.calls > 0
    assert "missing" not in {row.state for row in gate.rows}
    assert contract_of("sdpa_context").lifecycle == "candidate"
    assert (_texts(shipped) == before) is not gate.promoted
    kept = shipped / "gates/sdpa_context.json"
    assert kept.is_file() is gate.promoted
    assert not gate.promoted or kept.read_bytes() == (tmp_path / "gate.json").read_bytes()


@pytest.fixture
def shipped(tmp_path: Path, repository: Path) -> Path:
    """A copy of the contracts that ship."""
    copied = shutil.copytree(repository / "kernel_registry/contracts", tmp_path / "r/contracts")
    return Path(copied).parent


def _texts(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.contract("XRAY-26")
def test_a_promotion_edits_one_contract_and_keeps_its_gate(
    reports: tuple[Report, Report], shipped: Path
) -> None:
    before, gate = _texts(shipped), provider_gate(INCUMBENT, CANDIDATE, *reports)
    assert write_promotion(gate, shipped) == (
        shipped / "contracts/sdpa_context.toml",
        shipped / "gates/sdpa_context.json",
    )
    after = _texts(shipped)
    kept = msgspec.json.decode(after.pop("gates/sdpa_context.json"), type=Document)
    assert kept.body == gate
    changed = {name for name, text in after.items() if text != before[name]}
    assert changed == {"contracts/sdpa_context.toml"}
    lines = difflib.ndiff(*(t["contracts/sdpa_context.toml"].splitlines() for t in (before, after)))
    assert [line for line in lines if line[0] in "-+"] == [
        '- lifecycle = "candidate"',
        '+ lifecycle = "production"',
        "- priority = 100",
        "+ priority = 200",
        '+     "kernel_registry/gates/sdpa_context.json",',
    ]
    ranked = [c for c in read_contracts(shipped / "contracts") if c.operator == "sdpa"]
    assert max(ranked, key=lambda c: c.priority).id == "sdpa_context"


@pytest.mark.contract("XRAY-26")
@pytest.mark.parametrize("forged", [{}, {"promoted": True}, {"promoted": True, "reasons": ()}])
def test_a_gate_that_regresses_writes_nothing_whatever_it_says(
    forged: dict[str, Any], reports: tuple[Report, Report], shipped: Path
) -> None:
    before, after = reports
    gate = provider_gate(INCUMBENT, CANDIDATE, before, _moved(after, "max_abs", 1.0))
    kept = _texts(shipped)
    with pytest.raises(CkeError, match=r"CKE505\]: expected a gate that promotes `sdpa_context`"):
        write_promotion(msgspec.structs.replace(gate, **forged), shipped)
    assert _texts(shipped) == kept


@pytest.mark.contract("XRAY-26")
@pytest.mark.parametrize("earlier", [None, "{}"])
def test_a_promotion_that_fails_half_way_leaves_nothing(
    earlier: str | None,
    reports: tuple[Report, Report],
    shipped: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cke.api import promote

    if earlier is not None:
        write_atomically(shipped / "gates/sdpa_context.json", earlier.encode())

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".toml":
            raise OSError("no space left on device")
        write_atomically(path, data)

    kept = _texts(shipped)
    monkeypatch.setattr(promote, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        write_promotion(provider_gate(INCUMBENT, CANDIDATE, *reports), shipped)
    assert _texts(shipped) == kept


def test_a_contract_that_cannot_be_edited_is_refused(
    reports: tuple[Report, Report], shipped: Path
) -> None:
    path = shipped / "contracts/sdpa_context.toml"
    path.write_text(path.read_text().replace("evidence = [\n", "evidence = [").replace(",\n]", "]"))
    kept = _texts(shipped)
    with pytest.raises(CkeError, match=r"CKE505\]: expected `contracts/sdpa_context.toml` with"):
        write_promotion(provider_gate(INCUMBENT, CANDIDATE, *reports), shipped)
    assert _texts(shipped) == kept
