"""Diagnostics as Markdown, GitHub annotations, JUnit XML and SARIF 2.1.0."""

from typing import Any

import cke
from cke.errors import Diagnostic
from cke.errors.catalogue import catalogue

Diagnostics = tuple[Diagnostic, ...]


def markdown(diagnostics: Diagnostics) -> str:
    """A heading and one fenced block per diagnostic."""
    if not diagnostics:
        return "No findings."
    count = f"{len(diagnostics)} finding{'s' if len(diagnostics) > 1 else ''}"
    return "\n\n".join([f"## {count}", *(f"```text\n{item}\n```" for item in diagnostics)])


def github(diagnostics: Diagnostics) -> str:
    """One workflow command per diagnostic, as GitHub Actions shows beside the line."""
    return "\n".join(map(_github_line, diagnostics))


def _github_line(item: Diagnostic) -> str:
    fields = [f"title={item.code}"]
    if item.span is not None:
        span = item.span
        fields = [f"file={escape_property(span.file)}", f"line={span.line}", f"col={span.column}"]
        fields += [f"endLine={span.end_line}", f"endColumn={span.end_column}"]
        fields.append(f"title={item.code}")
    elif item.file is not None:
        fields.insert(0, f"file={escape_property(item.file)}")
    return f"::error {','.join(fields)}::{escape_text(_text(item))}"


def escape_text(text: str) -> str:
    """Return text as a workflow command takes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Return text as a property of a workflow command takes it."""
    return escape_text(text).replace(":", "%3A").replace(",", "%2C")


def _text(item: Diagnostic) -> str:
    return "\n".join([item.message, *(f"{note.label}: {note.text}" for note in item.notes)])


def junit(diagnostics: Diagnostics) -> str:
    """A test suite with one failed case per diagnostic, or one passed case."""
    from xml.etree import ElementTree

    count = str(len(diagnostics))
    suite = ElementTree.Element(
        "testsuite", name="cke", tests=str(max(1, len(diagnostics))), failures=count
    )
    if not diagnostics:
        ElementTree.SubElement(suite, "testcase", classname="cke", name="no findings")
    for item in diagnostics:
        where = str(item.span) if item.span else item.file or "cke"
        case = ElementTree.SubElement(suite, "testcase", classname=item.code, name=where)
        failure = ElementTree.SubElement(case, "failure", type=item.code, message=item.message)
        failure.text = str(item)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def sarif(diagnostics: Diagnostics) -> dict[str, Any]:
    """A SARIF 2.1.0 log with one run; its rules are the codes that occur."""
    codes = sorted({item.code for item in diagnostics})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "cke",
                        "version": cke.__version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "results": [_result(item, codes.index(item.code)) for item in diagnostics],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    page = catalogue().get(code)
    text = page.title if page else code
    return {"id": code, "shortDescription": {"text": text}}


def _result(item: Diagnostic, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": _text(item)},
    }
    file = item.span.file if item.span else item.file
    if file is not None:
        place: dict[str, Any] = {"artifactLocation": {"uri": file}}
        if item.span:
            place["region"] = {
                "startLine": item.span.line,
                "startColumn": item.span.column,
                "endLine": item.span.end_line,
                "endColumn": item.span.end_column,
            }
        result["locations"] = [{"physicalLocation": place}]
    return result
