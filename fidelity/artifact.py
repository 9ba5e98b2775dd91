"""Artifacts: everything that a third party needs, in one folder, with checksums of all of it.

`assemble` writes it, judges it and renders its pages; `publish` copies it elsewhere, or refuses.
"""

import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from cke.errors.files import folder_atomically, write_atomically
from cke.fidelity.checks.evidence import Contents, Evidence
from cke.fidelity.checks.weights import family_problems
from cke.fidelity.digests import file_sha256
from cke.fidelity.page import blocks_of, html_page, markdown
from cke.fidelity.receipt import Receipt, judge
from cke.fidelity.redact import redact, scan
from cke.fidelity.refusal import refuse
from cke.fidelity.score import SCORED_MANIFEST
from cke.fidelity.suite import pretty
from cke.schemas.reading import read_json

CHECKSUMS = "checksums.txt"
ENVIRONMENT = "environment.json"
RECEIPT = "receipt.json"
PAGE = "one-pager.md"
PAGE_HTML = "one-pager.html"
COMPARATOR = "comparator.json"
RESTRICTION = "restriction.json"
MODELS = "models"
BASELINE = "baseline"
Clock = Callable[[], str]


def write_checksums(folder: Path) -> None:
    """Write sorted lines `sha256  path` of every file but itself."""
    lines = [
        f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / CHECKSUMS
    ]
    write_atomically(folder / CHECKSUMS, "".join(sorted(lines, key=_name_of)).encode())


def _name_of(line: str) -> str:
    return line[66:]


def checksum_problems(folder: Path) -> list[str]:
    """Return what the checksums do not cover, or cover wrongly."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return [f"there is no `{CHECKSUMS}`"]
    listed: dict[str, str] = {}
    problems = []
    for line in path.read_text("utf-8").splitlines():
        digest, gap, name = line[:64], line[64:66], line[66:]
        parts = PurePosixPath(name).parts
        if gap != "  " or not name or ".." in parts or name.startswith("/"):
            problems.append(f"`{line[:80]}` is no checksum of a file of the artifact")
        elif name in listed:
            problems.append(f"`{name}` is listed twice")
        else:
            listed[name] = digest
    there = {
        item.relative_to(folder).as_posix()
        for item in folder.rglob("*")
        if item.is_file() and item != path
    }
    problems += [f"`{name}` is not listed" for name in sorted(there - set(listed))]
    problems += [f"`{name}` is missing" for name in sorted(set(listed) - there)]
    problems += [
        f"`{name}` has other bytes than its checksum"
        for name in sorted(there & set(listed))
        if file_sha256(folder / name) != listed[name]
    ]
    return problems


def contents_of(folder: Path, *, checksums: bool = True) -> Contents:
    """Return what an artifact folder holds."""
    roots = sorted(path for path in folder.joinpath(MODELS).glob("*") if path.is_dir())
    copies = {
        root.name: file_sha256(root / ENVIRONMENT) if root.joinpath(ENVIRONMENT).is_file() else ""
        for root in roots
    }
    restriction = folder / RESTRICTION
    return Contents(
        paths=tuple(
            sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        ),
        checksum_problems=tuple(checksum_problems(folder)) if checksums else (),
        environment_copies=copies,
        restriction=read_json(restriction) if restriction.is_file() else None,
    )


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact is assembled of: folders of suite, capture and results, and documents.

    `weights` are digests of the candidates as they are now on disk; the published inspections
    carry them, so that a folder that was changed or swapped since its score is refused by Law 16.
    `documents` are written beside the suite by name, None for one that there is not.
    """

    suite: Path
    capture: Path
    baseline: Path
    candidates: dict[str, Path]
    environment: dict[str, Any]
    comparator: dict[str, Any]
    approvals: dict[str, Any]
    weights: dict[str, str] = {}
    documents: dict[str, dict[str, Any] | None] = {}


def lay_out(campaign: Campaign, folder: Path) -> None:
    """Copy suite, reference, results and environment to their places in the artifact."""
    shutil.copytree(campaign.suite, folder / "suite")
    shutil.copytree(
        campaign.capture, folder / "reference", ignore=shutil.ignore_patterns("begun.json")
    )
    folder.joinpath(COMPARATOR).write_bytes(pretty(redact(campaign.comparator)))
    folder.joinpath("approvals.json").write_bytes(pretty(redact(campaign.approvals)))
    for name, value in campaign.documents.items():
        if value is not None:
            folder.joinpath(name).write_bytes(pretty(redact(value)))
    environment = pretty(redact(campaign.environment))
    folder.joinpath(ENVIRONMENT).write_bytes(environment)
    results = {BASELINE: campaign.baseline, **campaign.candidates}
    for name, source in results.items():
        root = folder / MODELS / name
        root.mkdir(parents=True)
        report = read_json(source / "report.json")
        root.joinpath("report.json").write_bytes(pretty(redact(report)))
        inspection = report.get("inspection")
        if inspection is not None and name in campaign.weights:
            inspection = {**inspection, "student_weights_sha256": campaign.weights[name]}
        root.joinpath("inspection.json").write_bytes(pretty(redact(inspection)))
        root.joinpath(ENVIRONMENT).write_bytes(environment)
        for copied in (SCORED_MANIFEST, "routing.json"):
            if source.joinpath(copied).is_file():
                shutil.copy2(source / copied, root / copied)


def assemble(
    campaign: Campaign,
    out: Path,
    evidence: Callable[[Path, str], Evidence],
    clock: Clock,
    *,
    force: bool = False,
) -> dict[str, Receipt]:
    """Write the artifact to `out` and return the receipt of every candidate.

    A family with one mean of different weights is refused. An artifact that was compliant is not
    replaced by one that is not, unless forced.
    """
    reports = tuple(read_json(path / "report.json") for path in campaign.candidates.values())
    if problems := family_problems(reports):
        refuse("CKE880", [item.text for item in problems])
    with folder_atomically(out) as folder:
        lay_out(campaign, folder)
        receipts = {}
        for name in sorted(campaign.candidates):
            write_checksums(folder)
            receipts[name] = _judge_and_render(folder, name, evidence, clock)
        folder.joinpath("duplicates.json").write_bytes(pretty(duplicates(campaign)))
        write_checksums(folder)
        if not force:
            _check_downgrade(out, receipts)
    return receipts


def _judge_and_render(
    folder: Path, name: str, evidence: Callable[[Path, str], Evidence], clock: Clock
) -> Receipt:
    """Judge once without a page to render it, and once with the page that is published."""
    found = evidence(folder, name)
    draft = judge(found, clock)
    page = markdown(blocks_of(found, draft))
    receipt = judge(msgspec.structs.replace(found, page=page), clock)
    final = blocks_of(found, receipt)
    root = folder / MODELS / name
    root.joinpath(PAGE).write_text(markdown(final), encoding="utf-8")
    root.joinpath(PAGE_HTML).write_text(html_page(final), encoding="utf-8")
    root.joinpath(RECEIPT).write_bytes(pretty(redact(msgspec.to_builtins(receipt))))
    return receipt


def duplicates(campaign: Campaign) -> list[dict[str, str]]:
    """Return candidates with the weights of an earlier one: re-uploads, published once."""
    seen: dict[str, str] = {}
    found = []
    for name, path in sorted(campaign.candidates.items()):
        digest = str(read_json(path / "report.json").get("student_weights_sha256"))
        if digest in seen:
            found.append({"candidate": name, "re_upload_of": seen[digest]})
        seen.setdefault(digest, name)
    return found


def _check_downgrade(out: Path, receipts: dict[str, Receipt]) -> None:
    for name, receipt in receipts.items():
        path = out / MODELS / name / RECEIPT
        if path.is_file() and read_json(path).get("compliant") is True and not receipt.compliant:
            refuse("CKE876", f"`{name}` was compliant, and would not be any more", file=out.name)


def publish(
    artifact: Path, target: Path, evidence: Callable[[Path, str], Evidence], clock: Clock
) -> None:
    """Copy the artifact to the new folder `target`, or refuse.

    Credentials are looked for first, in every text file; nothing skips that. Then every candidate
    is judged anew from the artifact, and compared with the receipt that it carries.
    """
    if found := scan(artifact):
        refuse("CKE877", found, file=artifact.name)
    problems = [f"`{text}`" for text in checksum_problems(artifact)]
    for root in sorted(path for path in artifact.joinpath(MODELS).iterdir() if path.is_dir()):
        if root.name == BASELINE:
            continue
        problems += _candidate_problems(artifact, root, evidence, clock)
    if problems:
        refuse("CKE876", problems, file=artifact.name)
    with folder_atomically(target) as folder:
        shutil.copytree(artifact, folder, dirs_exist_ok=True)


def _candidate_problems(
    artifact: Path, root: Path, evidence: Callable[[Path, str], Evidence], clock: Clock
) -> list[str]:
    for needed in (RECEIPT, PAGE):
        if not root.joinpath(needed).is_file():
            return [f"`{root.name}` has no `{needed}`"]
    page = root.joinpath(PAGE).read_text("utf-8")
    found = evidence(artifact, root.name)
    receipt = judge(msgspec.structs.replace(found, page=page), clock)
    stored = read_json(root / RECEIPT)
    problems = [
        f"`{root.name}`: law {item.law}: {text}"
        for item in receipt.findings
        if item.status == "fail"
        for text in item.detail
    ]
    if found.report.get("exploratory") or found.report.get("authoritative") is not True:
        problems.append(f"`{root.name}` is exploratory and is not published")
    for name in ("compliant", "laws_version"):
        if stored.get(name) != getattr(receipt, name):
            problems.append(f"`{root.name}`: the receipt's `{name}` is not what the artifact shows")
    return problems
