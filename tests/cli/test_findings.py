"""Diagnostics in every output format."""

import json
from xml.etree import ElementTree

import pytest

from cke.cli.output import encode_json, render_diagnostics
from cke.errors import CkeError, Diagnostic, Note, Span

FOUND = (
    Diagnostic(
        code="CKE901",
        message="expected `a`, got `b`",
        span=Span("circuits/x.circuit", 3, 5, 3, 8),
        source="  x = b(y)",
        notes=(Note("write `a`", label="help"),),
    ),
    Diagnostic(code="CKE902", message="50% wrong", file="cke.toml", path="$.a"),
)


def test_human_is_the_text_of_the_diagnostics() -> None:
    assert render_diagnostics(FOUND, "human") == (
        "circuits/x.circuit:3:5: error[CKE901]: expected `a`, got `b`\n"
        "   3 |   x = b(y)\n"
        "     |     ^^^\n"
        "  help: write `a`\n"
        "cke.toml: `$.a`: error[CKE902]: 50% wrong"
    )


def test_github_annotates_the_lines() -> None:
    assert render_diagnostics(FOUND, "github") == (
        "::error file=circuits/x.circuit,line=3,col=5,endLine=3,endColumn=8,title=CKE901"
        "::expected `a`, got `b`%0Ahelp: write `a`\n"
        "::error file=cke.toml,title=CKE902::50%25 wrong"
    )


def test_markdown_counts_the_findings() -> None:
    assert render_diagnostics(FOUND, "markdown").startswith("## 2 findings\n\n```text\ncircuits/")
    assert render_diagnostics((), "markdown") == "No findings."


def test_junit_has_a_failure_for_each() -> None:
    suite = ElementTree.fromstring(render_diagnostics(FOUND, "junit"))
    assert suite.get("failures") == suite.get("tests") == "2"
    assert [case.get("name") for case in suite] == ["circuits/x.circuit:3:5", "cke.toml"]


def test_junit_of_nothing_is_one_passed_case() -> None:
    suite = ElementTree.fromstring(render_diagnostics((), "junit"))
    assert (suite.get("failures"), suite.get("tests")) == ("0", "1")
    assert not list(suite.iter("failure"))


def test_sarif_points_at_the_region() -> None:
    [run] = json.loads(render_diagnostics(FOUND, "sarif"))["runs"]
    first, second = run["results"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 8}
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["CKE901", "CKE902"]
    assert second["ruleIndex"] == 1
    assert "region" not in second["locations"][0]["physicalLocation"]


def test_json_spells_what_is_not_finite() -> None:
    value = {"a": float("nan"), "b": [float("-inf"), 1.5], "c": (float("inf"),)}
    assert json.loads(encode_json(value)) == {
        "a": "NaN",
        "b": ["-Infinity", 1.5],
        "c": ["Infinity"],
    }


def test_unknown_format_is_refused() -> None:
    with pytest.raises(CkeError, match=r"got `yaml`"):
        render_diagnostics(FOUND, "yaml")
