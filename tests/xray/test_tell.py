"""A diagnosis on one screen, and as a page: everything that decides is said, and fits."""

import msgspec
import pytest

from cke.schemas.diagnosis import Diagnosis
from cke.xray.tell import LINES, WIDTH, human
from cke.xray.tell_markdown import markdown
from tests.xray import reports

ALL = (reports.clean, reports.finding, reports.open_question, reports.stopped)


@pytest.mark.parametrize("make", ALL)
def test_every_report_fits_one_screen(make: object) -> None:
    lines = human(make()).splitlines()  # type: ignore[operator]
    assert len(lines) <= LINES == 30
    assert max(map(len, lines)) <= WIDTH == 100


def test_a_long_report_still_fits() -> None:
    found = msgspec.structs.replace(
        reports.divergence(),
        recommended_action="word " * 200,
        because=tuple("reason " * 30 for _ in range(9)),
    )
    report = msgspec.structs.replace(reports.finding(), first_divergence=found)
    lines = human(report).splitlines()
    assert len(lines) <= LINES
    assert lines[-1] == "… report.md has the rest"


def test_reasons_stand_under_one_label() -> None:
    found = msgspec.structs.replace(reports.divergence(), replay=None, because=("one", "two"))
    lines = human(msgspec.structs.replace(reports.finding(), first_divergence=found)).splitlines()
    at = lines.index("why       one")
    assert lines[at + 1] == "          two"


def test_a_finding_says_what_where_how_much_why_who_and_what_to_do() -> None:
    text = " ".join(human(reports.finding()).split())
    for part in (
        f"{reports.EDGE} is the first edge that differs from PyTorch.",
        "1/3 edges within gate — FP32 · PyTorch · fixture 20260725 · 1 thread",
        "behavioral_divergence",
        "The first token flips at row 0, position 4 of forward 0.",
        "class POSITION_CONTRACT_MISMATCH",
        "`attention.rope` (rope, kernel `rope`) at mine/blocks/decoder.circuit:41:9",
        "relative RMSE 0.0187 against a budget of 1.6e-06 (forward_error), 11,688 times it",
        "worst at B0 T10 H3 E5: 0.1976, oracle 0.21",
        "embedding is the last that agrees",
        "kernel / float64 definition agrees relative RMSE 3.2e-08",
        "float64 definition / oracle DIFFERS relative RMSE 0.0187",
        "of 29 single changes replayed, one closes the gap: `base` 10000.0 in place of 12345.0",
        "relative RMSE 0.0187 becomes 4e-08",
        "owner circuit — the circuit file",
        "- q = rope(q, positions, freqs, base: 12345.0)",
        "+ q = rope(q, positions, freqs, base: 10000.0)",
        "good: binding (21 rounds), schedule (21 forwards), metadata (21 tensors), weights (21 "
        "weights); not reached or not at hand: behaviour",
        "37/37 ops have X-ray edges, 43 of 45 graph edges; 24 + 24 tensors in 1 round",
        "again cke xray --model model --oracle pytorch --out out",
    ):
        assert part in text


@pytest.mark.contract("XRAY-3")
def test_a_pass_is_stated_with_its_scope() -> None:
    text = human(reports.clean())
    banner = "79/79 edges within gate — FP32 · PyTorch · fixture 20260725 · 1 thread"
    assert text.startswith(f"{banner}\nNothing diverges from PyTorch.\n")
    assert "circuit llama@1 (family llama), PyTorch 5.24.0 in f32, 1 x 12 prompt tokens" in text
    assert "100%" not in text + markdown(reports.clean())


@pytest.mark.contract("XRAY-2")
def test_an_open_question_names_its_probe_and_is_never_green() -> None:
    text = " ".join(human(reports.open_question()).split())
    assert "its cause is open" in text
    assert "2 of 29 changes close the gap" in text
    assert "question which of the changes holds on longer inputs" in text
    assert "probe cke xray --model model --oracle llamacpp --out out" in text
    assert "Nothing diverges" not in text
    assert "\nowner" not in human(reports.open_question())


def test_a_stop_before_numbers_has_no_verdict() -> None:
    text = human(reports.stopped())
    assert "Stopped before any number was compared: there is no verdict." in text
    assert "MISSING_TOLERANCE_PROFILE" in text
    assert "no entry of the profile matches" in text
    assert "pass_within_gate" not in text


def test_an_incomplete_report_without_a_finding_is_no_pass() -> None:
    report = msgspec.structs.replace(reports.clean(), status="incomplete", verdict=None)
    assert "Nothing was compared" in human(report)


def test_elements_that_are_not_finite_are_counted() -> None:
    found = msgspec.structs.replace(reports.divergence(), metrics=reports.metrics(None))
    report = msgspec.structs.replace(reports.finding(), first_divergence=found)
    assert "2 elements are not finite on one side only" in human(report)


def test_a_command_that_is_split_can_be_pasted() -> None:
    long = (
        "cke xray --model " + "m" * 50 + " --prompt 'two words' --oracle pytorch --out " + "o" * 30
    )
    report = msgspec.structs.replace(reports.clean(), reproduce=long)
    tail = human(report).split("again", 1)[1]
    assert tail.count("\\\n") == 1
    assert " ".join(tail.replace("\\\n", " ").split()) == long


def test_a_long_patch_line_shows_what_changed() -> None:
    line = "    scores = sdpa(" + "operand, " * 20 + "window: {})"
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n" + f"-{line.format(5)}\n+{line.format('none')}\n"
    found = msgspec.structs.replace(
        reports.divergence(), confirmed_by=msgspec.structs.replace(reports.change(), patch=patch)
    )
    text = human(msgspec.structs.replace(reports.finding(), first_divergence=found))
    assert "window: 5)" in text
    assert "window: none)" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("make", ALL)
def test_page_holds_the_stages_and_the_command(make: object) -> None:
    report: Diagnosis = make()  # type: ignore[operator]
    page = markdown(report, "drift.svg")
    assert page.count("\n| binding | ") == 1
    assert f"```sh\n{report.reproduce}\n```" in page
    assert ("![drift curve](drift.svg)" in page) is bool(report.points)
    for line in page.splitlines():
        assert not line.startswith("|") or line.replace("\\|", "").count("|") >= 3


def test_page_of_a_finding_shows_patch_replay_and_neighbours() -> None:
    page = markdown(reports.finding())
    assert f"```diff\n{reports.PATCH}```" in page
    assert "| float64 definition / oracle | relative RMSE 0.0187 | **no** |" in page
    assert f"| 1 | **`{reports.EDGE}`** | over | 0.019 | 1.6e-06 |" in page
    assert "| owner | **circuit** |" in page
