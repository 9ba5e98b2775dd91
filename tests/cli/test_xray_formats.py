"""A diagnosis as annotations, JUnit and SARIF."""

from xml.etree import ElementTree

import msgspec

from cke.cli.xray_formats import github, junit, sarif
from tests.xray import reports


def test_annotation_stands_at_the_circuit_line() -> None:
    text = github(reports.finding())
    assert text.startswith(
        "::error file=mine/blocks/decoder.circuit,line=41,col=9,title=X-Ray "
        f"POSITION_CONTRACT_MISMATCH::{reports.EDGE} is the first edge that differs"
    )
    assert "\n" not in text


def test_annotation_of_a_pass_is_a_notice_with_its_scope() -> None:
    text = github(reports.clean())
    assert text.startswith("::notice title=X-Ray::79/79 edges within gate — FP32")


def test_annotation_of_an_open_question_is_a_warning() -> None:
    assert github(reports.open_question()).startswith("::warning file=mine/")


def test_a_line_of_the_library_keeps_its_path() -> None:
    found = msgspec.structs.replace(reports.divergence(), source="circuits/gemma2.circuit:3:1")
    report = msgspec.structs.replace(reports.finding(), first_divergence=found)
    assert "file=circuits/gemma2.circuit,line=3" in github(report)


def _counts(text: str) -> tuple[str | None, ...]:
    suite = ElementTree.fromstring(text)
    return tuple(suite.get(name) for name in ("tests", "failures", "errors", "skipped"))


def test_junit_has_a_case_for_every_stage_and_one_for_the_finding() -> None:
    suite = ElementTree.fromstring(junit(reports.finding()))
    assert [case.get("name") for case in suite] == [
        *("binding", "schedule", "metadata", "weights", "numbers", "behaviour"),
        "first divergence",
    ]
    assert suite[-1][0].get("type") == "POSITION_CONTRACT_MISMATCH"
    assert "owner     circuit" in (suite[-1][0].text or "")
    assert _counts(junit(reports.finding())) == ("7", "2", "0", "1")


def test_junit_of_a_pass_has_no_failure_and_of_a_question_an_error() -> None:
    assert _counts(junit(reports.clean())) == ("7", "0", "0", "0")
    assert _counts(junit(reports.open_question())) == ("7", "1", "1", "1")


def test_sarif_has_rule_message_and_both_locations() -> None:
    log = sarif(reports.finding())
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][0]["id"] == "POSITION_CONTRACT_MISMATCH"
    result = run["results"][0]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == (
        "POSITION_CONTRACT_MISMATCH",
        0,
        "error",
    )
    where = result["locations"][0]
    assert where["physicalLocation"] == {
        "artifactLocation": {"uri": "mine/blocks/decoder.circuit"},
        "region": {"startLine": 41, "startColumn": 9},
    }
    assert where["logicalLocations"][0]["fullyQualifiedName"] == reports.EDGE
    assert "owner: circuit" in result["message"]["text"]


def test_sarif_of_a_pass_has_no_result_and_of_missing_evidence_one() -> None:
    assert sarif(reports.clean())["runs"][0]["results"] == []
    missing = msgspec.structs.replace(reports.clean(), status="incomplete", verdict=None)
    result = sarif(missing)["runs"][0]["results"][0]
    assert (result["ruleId"], result["level"]) == ("NO_EVIDENCE", "warning")
    assert "locations" not in result
