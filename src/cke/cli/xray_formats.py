"""A diagnosis as GitHub annotations, JUnit XML and SARIF 2.1.0; all from the report alone."""

from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import cke
from cke.cli.findings import escape_property, escape_text
from cke.schemas.diagnosis import Diagnosis, Divergence, Stage
from cke.xray.tell import amount, headline, human, place, proof, source_path

OPEN = "OPEN_QUESTION"
NO_EVIDENCE = "NO_EVIDENCE"


def rule_of(report: Diagnosis) -> str | None:
    """Return the class of the finding; a name of its own for an open question, None for a pass."""
    found = report.first_divergence
    if found is None:
        return None if report.status == "complete" else NO_EVIDENCE
    return found.failure_class or OPEN


def is_proven(report: Diagnosis) -> bool:
    """Return whether a finding names its owner; an open question does not."""
    found = report.first_divergence
    return found is not None and found.fix_owner is not None


def message_of(report: Diagnosis) -> str:
    """Return the finding in a few sentences, for a place that shows no table."""
    found = report.first_divergence
    lines = headline(report).split("\n")
    if found is None:
        return "\n".join(lines)
    if found.metrics is not None:
        lines.append(amount(found))
    lines += found.because
    if found.confirmed_by is not None:
        lines.append(proof(found, found.confirmed_by))
    if found.fix_owner is not None:
        lines.append(f"owner: {found.fix_owner}; {found.recommended_action}")
    if report.next_probe is not None:
        lines.append(f"open: {report.next_probe.question}; {report.next_probe.command}")
    return "\n".join(lines)


def position_of(report: Diagnosis) -> tuple[str, int, int] | None:
    """Return the file, line and column of the circuit that the finding stands at."""
    text = source_path(report)
    if not text:
        return None
    file, line, column = text.rsplit(":", 2)
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix(), int(line), int(column)


def github(report: Diagnosis) -> str:
    """One workflow command: an error at the circuit line, or a notice that states the scope."""
    rule = rule_of(report)
    message = escape_text(message_of(report))
    if rule is None:
        level = "notice" if report.verdict == "pass_within_gate" else "warning"
        return f"::{level} title=X-Ray::{message}"
    fields = [f"title=X-Ray {rule}"]
    at = position_of(report)
    if at is not None:
        file, line, column = at
        fields = [f"file={escape_property(file)}", f"line={line}", f"col={column}", *fields]
    level = "error" if is_proven(report) else "warning"
    return f"::{level} {','.join(fields)}::{message}"


def junit(report: Diagnosis) -> str:
    """A suite with one case per stage; the finding fails the stage that it was found in."""
    suite = ElementTree.Element("testsuite", name=f"xray {report.scope.get('oracle')}")
    rule = rule_of(report)
    cases = {stage.name: _stage_case(suite, stage) for stage in report.stages}
    if rule is not None:
        broken = next((s.name for s in report.stages if s.state == "broken"), None)
        case = cases.get(broken) if broken else None
        if case is None:
            case = ElementTree.SubElement(suite, "testcase", classname="xray", name="evidence")
        # an open question is no failure of the subject that was proven
        kind = "failure" if is_proven(report) else "error"
        first = headline(report).split("\n")[0]
        node = ElementTree.SubElement(case, kind, type=rule, message=first)
        node.text = human(report)
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for kind in counts:
        counts[kind] = len(suite.findall(f"./testcase/{kind}"))
    suite.set("tests", str(len(suite.findall("./testcase"))))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _stage_case(suite: ElementTree.Element, stage: Stage) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname="xray.stage", name=stage.name)
    if stage.state not in ("passed", "broken"):
        ElementTree.SubElement(case, "skipped", message=stage.detail or stage.state)
    return case


def sarif(report: Diagnosis) -> dict[str, Any]:
    """A SARIF 2.1.0 log with one run, and one result unless nothing was found."""
    rule = rule_of(report)
    found = report.first_divergence
    driver: dict[str, Any] = {"name": "cke xray", "version": cke.__version__, "rules": []}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": []}
    if rule is not None:
        action = None if found is None else found.recommended_action
        text = action or "the evidence does not decide; a probe is named"
        driver["rules"] = [{"id": rule, "shortDescription": {"text": text}}]
        run["results"] = [_result(report, rule, found)]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }


def _uri(file: str) -> str:
    """Return a path as a URI reference: escaped, and with its scheme when it is absolute."""
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file)


def _result(report: Diagnosis, rule: str, found: Divergence | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": 0,
        "level": "error" if is_proven(report) else "warning",
        "message": {"text": message_of(report)},
    }
    location: dict[str, Any] = {}
    at = position_of(report)
    if at is not None:
        file, line, column = at
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(file)},
            "region": {"startLine": line, "startColumn": column},
        }
    if found is not None and found.checkpoint_id is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": place(found), "kind": "member"}]
    if location:
        result["locations"] = [location]
    return result
