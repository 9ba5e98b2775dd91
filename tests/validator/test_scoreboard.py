"""The scoreboard is computed from outcomes: each wrong, missed or flagged one turns it red."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from cke.schemas.validator_selftest import Document, Expected, Found, Outcome, Selftest
from cke.validator.entries import Case, read_catalogue
from cke.validator.judge import _verdicts
from cke.validator.render import junit, kind_of, markdown, picture
from cke.validator.run import Kept
from cke.validator.scoreboard import is_right, selftest
from cke.validator.validate import write_scoreboard

EXPECTED = Expected(
    checkpoint_id="layer.0.attention.rope_query_output",
    failure_class="POSITION_CONTRACT_MISMATCH",
    fix_owner="circuit",
)
NOTHING = Expected(checkpoint_id=None, failure_class=None, fix_owner=None)
QUIET = Found(
    status="complete",
    verdict="pass_within_gate",
    checkpoint_id=None,
    failure_class=None,
    fix_owner=None,
    confirmed_by=None,
    because=(),
    next_probe=None,
)
RIGHT = msgspec.structs.replace(
    QUIET,
    verdict="behavioral_divergence",
    checkpoint_id=EXPECTED.checkpoint_id,
    failure_class=EXPECTED.failure_class,
    fix_owner="circuit",
    confirmed_by="attribute base",
)
UNSURE = msgspec.structs.replace(RIGHT, status="incomplete", failure_class=None, fix_owner=None)


def outcome(name: str, found: Found | None, fault: bool = True, failed: str | None = None) -> Any:
    expected = EXPECTED if fault else NOTHING
    return Outcome(
        id=name,
        entry=name,
        kind="fault" if fault else "control",
        stands_for="bug 4",
        place="circuit text",
        size=None,
        family="llama",
        request="decode",
        dtype="f32",
        oracle="pytorch",
        expected=expected,
        found=found,
        failed=failed,
        **_verdicts(fault, expected, found),
    )


def board(*outcomes: Outcome, missing: tuple[str, ...] = ()) -> Selftest:
    names = (*(item.id for item in outcomes), *missing)
    return selftest(outcomes, names, "light", 1, "0" * 64)


GOOD = outcome("good", RIGHT)
SILENT = outcome("silent", QUIET, fault=False)


def changed(**fields: Any) -> Found:
    return msgspec.structs.replace(RIGHT, **fields)


def test_a_right_diagnosis_and_a_quiet_control_pass() -> None:
    body = board(GOOD, SILENT)
    assert (body.status, body.reasons) == ("pass", ())
    assert (body.score.injected, body.score.edge_exact, body.score.controls) == (1, 1, 1)
    assert body.by["owner"]["circuit"].owner_right == 1


@pytest.mark.contract("XRAY-32")
@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (outcome("bad", QUIET), "missed"),
        (outcome("bad", UNSURE), "declined"),
        (outcome("bad", changed(failure_class="KERNEL_BINDING_MISMATCH")), "wrong"),
        (outcome("bad", changed(fix_owner="kernel")), "wrong"),
        (outcome("bad", changed(checkpoint_id="logits")), "edge off"),
        (outcome("bad", None, failed="exit 1"), "failed"),
        (outcome("bad", RIGHT, fault=False), "flagged"),
        (outcome("bad", UNSURE, fault=False), "flagged"),
    ],
)
def test_every_kind_of_bad_outcome_turns_the_score_red(bad: Outcome, kind: str) -> None:
    assert kind_of(bad) == kind
    assert not is_right(bad)
    body = board(GOOD, bad, SILENT)
    assert body.status == "fail"
    assert body.reasons


def test_a_finding_whose_owner_is_open_states_nothing_unless_it_has_to_be_open() -> None:
    found = changed(status="incomplete", failure_class="RANKING_DIVERGENCE", fix_owner=None)
    assert kind_of(outcome("tie", found)) == "declined"
    expected = msgspec.structs.replace(EXPECTED, failure_class="RANKING_DIVERGENCE", fix_owner=None)
    assert _verdicts(True, expected, found)["owner_right"]
    owned = msgspec.structs.replace(found, fix_owner="kernel")
    assert _verdicts(True, expected, owned)["wrong"]


def test_a_case_without_outcome_or_a_run_without_controls_is_incomplete() -> None:
    assert board(GOOD, SILENT, missing=("later",)).status == "incomplete"
    assert board(GOOD).status == "incomplete"
    assert board(SILENT).status == "incomplete"


def test_a_miss_is_listed_with_its_reasons_in_every_form() -> None:
    bad = outcome("a<b", changed(fix_owner="kernel", because=("the kernel & the rest",)))
    body = board(GOOD, bad, SILENT)
    text = markdown(body)
    assert "### a<b: wrong" in text
    assert "- because the kernel & the rest" in text
    root = ElementTree.fromstring(junit(body, {"a<b": 1.5}))
    assert (root.get("tests"), root.get("failures")) == ("3", "1")
    failed = root.find(".//failure")
    assert failed is not None
    assert failed.get("message") == "wrong"
    drawn = picture(body)
    ElementTree.fromstring(drawn)
    assert "by owner" in drawn
    assert "1 wrong" in drawn


@pytest.mark.contract("XRAY-33")
@pytest.mark.contract("XRAY-62")
def test_the_files_of_a_run_are_written_and_the_trend_grows(tmp_path: Path) -> None:
    entry = next(item for item in read_catalogue() if item.id == "rope-base")
    case = Case(entry, "llama", "decode", "f32", "pytorch")
    kept = [Kept(key="", outcome=msgspec.structs.replace(GOOD, id=case.id), seconds=2.0)]
    for _ in range(2):
        written = write_scoreboard(tmp_path, "light", (case,), kept)
    read = msgspec.json.decode((tmp_path / "selftest.json").read_bytes(), type=Document)
    assert read == written
    suite = ElementTree.fromstring((tmp_path / "junit.xml").read_text()).find("testsuite")
    assert suite is not None
    assert suite.get("name") == "validator.pytorch"
    assert (tmp_path / "selftest.svg").read_text().startswith("<svg")
    lines = (tmp_path / "trend.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line)["status"] for line in lines] == ["incomplete"] * 2
