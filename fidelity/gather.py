"""Evidence from an artifact folder as it stands, and from the tree that judges it."""

from pathlib import Path
from typing import Any

from cke.errors import CkeError
from cke.fidelity.artifact import BASELINE, ENVIRONMENT, MODELS, contents_of
from cke.fidelity.checks.evidence import Evidence
from cke.fidelity.digests import file_sha256
from cke.fidelity.environment import head_commit
from cke.fidelity.score import SCORED_MANIFEST
from cke.fidelity.settings import numerics_digest
from cke.fidelity.suite_reader import Suite, load_suite
from cke.runtime.package import Package, load_package
from cke.schemas.reading import read_json


def gather(artifact: Path, name: str) -> Evidence:
    """Return the evidence of candidate `name`; what is not there is None, never assumed."""
    root = artifact / MODELS / name
    contents = contents_of(artifact)
    report = _read(root / "report.json") or {}
    others = [
        path / "report.json"
        for path in sorted(artifact.joinpath(MODELS).iterdir())
        if path.is_dir() and path.name not in (BASELINE, name)
    ]
    return Evidence(
        report=report,
        manifest=_scored_manifest(root, report),
        self_report=_read(artifact / MODELS / BASELINE / "report.json"),
        environment=_read(root / ENVIRONMENT),
        suite=_suite(artifact / "suite"),
        reference=_read(artifact / "reference" / "manifest.json"),
        contents=contents,
        inspection=_read(root / "inspection.json"),
        live=live_tree(artifact / "reference" / "package"),
        approvals=_read(artifact / "approvals.json") or {},
        family=tuple(found for path in others if (found := _read(path)) is not None),
        parameters=_read(artifact / "frozen-parameters.json"),
        repeat_study=_read(artifact / "repeat-study.json"),
        routing=_read(root / "routing.json"),
    )


def live_tree(folder: Path) -> dict[str, Any]:
    """Return what the tree that runs now is: its commit, and the digest of its numerics."""
    found: dict[str, Any] = {"commit": head_commit()}
    package = _package(folder)
    if package is not None:
        found["numerics_digest"] = numerics_digest(package)
    return found


def _package(folder: Path) -> Package | None:
    return load_package(folder) if folder.joinpath("manifest.json").is_file() else None


def _scored_manifest(root: Path, report: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest that the run was scored against, by its digest in the report."""
    path = root / SCORED_MANIFEST
    if not path.is_file() or file_sha256(path) != report.get("capture_manifest_sha256"):
        return None
    return _read(path)


def _suite(folder: Path) -> Suite | None:
    try:
        return load_suite(folder)
    except CkeError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    found = read_json(path) if path.is_file() else None
    return found if isinstance(found, dict) else None
