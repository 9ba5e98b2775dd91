"""A diagnosis as annotations, JUnit and SARIF."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

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


def test_junit_has_a_case_for_every_stage_and_the_finding_fails_its_own() -> None:
    suite = ElementTree.fromstring(junit(reports.finding()))
    assert [case.get("name") for case in suite] == [
        *("binding", "schedule", "metadata", "weights", "numbers", "behaviour")
    ]
    (failure,) = suite.findall("./testcase/failure")
    assert failure in list(suite[4])
    assert failure.get("type") == "POSITION_CONTRACT_MISMATCH"
    assert "owner     circuit" in (failure.text or "")
    assert _counts(junit(reports.finding())) == ("6", "1", "0", "1")


def test_junit_is_what_its_consumers_read() -> None:
    for report in (reports.clean(), reports.finding(), reports.stopped(), reports.open_question()):
        suite = ElementTree.fromstring(junit(report))
        assert suite.tag == "testsuite"
        assert {"name", "tests", "failures", "errors", "skipped"} <= set(suite.keys())
        for case in suite:
            assert case.tag == "testcase"
            assert {"classname", "name"} == set(case.keys())
            assert len(case) <= 1
            assert all(item.tag in ("failure", "error", "skipped") for item in case)
            assert all(item.get("message") for item in case)


def test_junit_of_a_pass_has_no_failure_and_of_a_question_an_error() -> None:
    assert _counts(junit(reports.clean())) == ("6", "0", "0", "0")
    assert _counts(junit(reports.open_question())) == ("6", "0", "1", "1")
    missing = msgspec.structs.replace(reports.clean(), status="incomplete", verdict=None)
    assert _counts(junit(missing)) == ("7", "0", "1", "0")


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


def test_sarif_has_what_its_schema_requires() -> None:
    """The required members of SARIF 2.1.0 objects, and URI references that parse."""
    for make in (reports.clean, reports.finding, reports.stopped, reports.open_question):
        log = sarif(make())
        assert {"version", "runs"} <= set(log)
        for run in log["runs"]:
            driver = run["tool"]["driver"]
            assert driver["name"]
            rules = [rule["id"] for rule in driver["rules"]]
            assert len(set(rules)) == len(rules)
            for result in run["results"]:
                assert result["message"]["text"]
                assert rules[result["ruleIndex"]] == result["ruleId"]
                assert result["level"] in ("none", "note", "warning", "error")
                for place in result.get("locations", ()):
                    region = place.get("physicalLocation", {}).get("region")
                    assert region is None or min(region.values()) >= 1


def test_a_uri_is_escaped_and_a_path_outside_has_its_scheme(tmp_path: Path) -> None:
    outside = f"{tmp_path}/x y"
    for folder, uri in (("my circuits", "my%20circuits"), (outside, Path(outside).as_uri())):
        scope = {**reports.finding().scope, "circuit_folder": folder}
        report = msgspec.structs.replace(reports.finding(), scope=scope)
        place = sarif(report)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == f"{uri}/blocks/decoder.circuit"


def test_a_circuit_below_the_working_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope = {**reports.finding().scope, "circuit_folder": f"{tmp_path}/mine"}
    report = msgspec.structs.replace(reports.finding(), scope=scope)
    assert "file=mine/blocks/decoder.circuit,line=41" in github(report)
