"""The files of a diagnosis: report.json, report.md, drift.svg, fix.patch; each whole or not at all.

What differs between two equal runs is in run.json, outside the hashed body.
"""

import platform
from pathlib import Path
from typing import Any

import msgspec

from cke.errors.files import write_atomically
from cke.schemas.diagnosis import SCHEMA, VERSION, Diagnosis, Document
from cke.schemas.reading import canonical_sha256, to_json
from cke.viewer.drift import draw_diagnosis
from cke.xray.tell_markdown import markdown

REPORT, PAGE, PICTURE, PATCH, RUN = "report.json", "report.md", "drift.svg", "fix.patch", "run.json"


def document_of(report: Diagnosis) -> Document:
    """Return the report in its envelope, with the hash of its body."""
    return Document(
        schema=SCHEMA, version=VERSION, body=report, body_sha256=canonical_sha256(report)
    )


def with_folder(report: Diagnosis, circuit: str | Path | None) -> Diagnosis:
    """Return the report with the folder of a user's own circuit, for paths an editor opens."""
    path = None if circuit is None else Path(circuit)
    if path is None or not path.is_file():
        return report
    scope = {**report.scope, "circuit_folder": path.parent.as_posix()}
    return msgspec.structs.replace(report, scope=scope)


def with_progress(report: Diagnosis, earlier: Diagnosis, digest: str) -> Diagnosis:
    """Return the report with how its first divergence moved since an earlier one."""
    line = f"since {digest[:12]}: {moved(report, earlier)}"
    return msgspec.structs.replace(report, fix_progression=(line, *report.fix_progression))


def moved(report: Diagnosis, earlier: Diagnosis) -> str:
    """Say whether the first divergence moved later, stayed, came earlier, or is gone."""
    before, after = _edge(earlier), _edge(report)
    if before is None:
        return "the earlier report had no divergent edge"
    if report.status in ("incomplete", "rejected") and after is None:
        return f"not known: the evidence is {report.status}"
    if after is None and report.first_divergence is not None:
        return f"stopped in the {report.first_divergence.stage} stage, before numbers"
    if after is None:
        return f"gone: {_named(before)} was the first divergent edge, and nothing diverges now"
    if after == before:
        return f"stayed at {_named(before)}"
    places = {(p.segment, p.checkpoint_id, p.role): p.stop for p in report.points}
    old, new = places.get(before), places.get(after)
    if old is None or new is None:
        return f"from {_named(before)} to {_named(after)}; which is later is not known"
    way = "later" if new > old else "earlier"
    return f"moved {way}: from {_named(before)} to {_named(after)}"


def _edge(report: Diagnosis) -> tuple[int, str, str | None] | None:
    found = report.first_divergence
    if found is None or found.checkpoint_id is None:
        return None
    return found.segment or 0, found.checkpoint_id, found.role


def _named(edge: tuple[int, str, str | None]) -> str:
    segment, name, role = edge
    return f"{name}{f' [{role}]' if role else ''} in forward {segment}"


def write_report(report: Diagnosis, folder: Path, seconds: float | None = None) -> None:
    """Write every file of a report into the folder; files of an earlier one are replaced."""
    found = report.first_divergence
    change = None if found is None else found.confirmed_by
    texts: dict[str, bytes | None] = {
        PICTURE: draw_diagnosis(report).encode() if report.points else None,
        PATCH: None if change is None or change.patch is None else change.patch.encode(),
        PAGE: markdown(report, PICTURE).encode(),
        RUN: to_json(_volatile(seconds)),
        REPORT: to_json(document_of(report)),
    }
    for name, data in texts.items():
        if data is None:
            folder.joinpath(name).unlink(missing_ok=True)
        else:
            write_atomically(folder / name, data)


def _volatile(seconds: float | None) -> dict[str, Any]:
    return {
        "seconds": None if seconds is None else round(seconds, 3),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
