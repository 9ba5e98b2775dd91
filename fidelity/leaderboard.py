"""The leaderboard: sections of results under one key, ranked only where a rank means something.

A section is the key without its substitutions; a substituted row stays in place, marked, and ranks
only among rows with the same substitution. What the floors or the interval do not separate shares
a rank.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cke.fidelity.bootstrap import paired_interval, resolved
from cke.fidelity.checks.weights import family_problems, is_baseline
from cke.fidelity.fields import key_of, key_problems, rank_key, section_of
from cke.fidelity.refusal import refuse
from cke.schemas.reading import read_json

DAGGER = "†"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A result for the board: its report, whether its receipt was compliant, and its floors."""

    report: dict[str, Any]
    compliant: bool
    routing_floor: float | None = None
    repeat_floor: float = 0.0
    repeated: bool = False
    saturated: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a section; `rank` is None where it is published unranked, and `note` says why."""

    candidate: str
    mean_kld: float
    rank: int | None
    mark: str
    note: str


def leaderboard(
    entries: Sequence[Entry], excluded: Sequence[dict[str, str]] = ()
) -> dict[str, list[Line]]:
    """Return the lines of every section, by its digest."""
    _check(entries, excluded)
    sections: dict[str, list[Entry]] = {}
    for entry in entries:
        sections.setdefault(section_of(key_of(entry.report)), []).append(entry)
    return {name: _section(found) for name, found in sorted(sections.items())}


def _check(entries: Sequence[Entry], excluded: Sequence[dict[str, str]]) -> None:
    problems = [item.text for item in family_problems(tuple(e.report for e in entries))]
    for entry in entries:
        name = entry.report.get("student_model")
        if not entry.compliant:
            problems.append(f"`{name}` is not compliant")
        problems += [f"`{name}`: {text}" for text in key_problems(key_of(entry.report))]
    active = {str(entry.report.get("student_model")) for entry in entries}
    for item in excluded:
        if lacking := exclusion_problems(item):
            problems += lacking
        elif item["candidate"] in active:
            problems.append(f"`{item['candidate']}` is excluded and active")
    if problems:
        refuse("CKE880", problems)


def exclusion_problems(item: dict[str, str]) -> list[str]:
    """Return what an excluded candidate does not state."""
    names = ("candidate", "repository", "revision", "reason")
    lacking = [name for name in names if not item.get(name)]
    return [f"an excluded candidate lacks `{lacking[0]}`"] if lacking else []


def entries_of(artifact: Path) -> tuple[list[Entry], list[dict[str, str]]]:
    """Return the results of an artifact, and the candidates that it leaves out."""
    entries = []
    for root in sorted(artifact.joinpath("models").iterdir()):
        if not root.joinpath("receipt.json").is_file():
            continue
        receipt, report = read_json(root / "receipt.json"), read_json(root / "report.json")
        natural = receipt.get("routing") or {}
        entries.append(
            Entry(
                report=report,
                compliant=receipt["compliant"],
                routing_floor=receipt["ranking_floor"],
                repeat_floor=receipt["nondeterminism_floor"] or 0.0,
                saturated=natural.get("state") == "saturated",
            )
        )
    return entries, read_json(artifact / "comparator.json").get("excluded_candidates", [])


def rank_together(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries by mean; CKE880 when their keys differ, since no ranking holds two keys."""
    keys = {rank_key(key_of(entry.report)) for entry in entries}
    if len(keys) > 1:
        refuse("CKE880", "a ranking holds results of one comparability key only")
    return sorted(entries, key=lambda entry: float(entry.report["mean_kld"]))


def _section(entries: list[Entry]) -> list[Line]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(rank_key(key_of(entry.report)), []).append(entry)
    ranks: dict[int, tuple[int | None, str]] = {}
    for found in groups.values():
        ranked = [e for e in rank_together(found) if _unranked(e) is None]
        rank = 0
        for index, entry in enumerate(ranked):
            why = None if index == 0 else not_separate(ranked[index - 1], entry)
            rank = rank if why else index + 1
            ranks[id(entry)] = (rank, why or "")
    ordered = sorted(entries, key=lambda entry: float(entry.report["mean_kld"]))
    return [_line(entry, ranks.get(id(entry))) for entry in ordered]


def _unranked(entry: Entry) -> str | None:
    if is_baseline(entry.report):
        return "the reference itself"
    if entry.saturated:
        return "routing is saturated"
    if entry.repeat_floor and not entry.repeated:
        return "a non-zero baseline ranks only with repeated candidate captures"
    return None


def not_separate(first: Entry, second: Entry) -> str | None:
    """Return why two neighbours share a rank, None where they differ."""
    difference = abs(float(second.report["mean_kld"]) - float(first.report["mean_kld"]))
    repeat = max(first.repeat_floor, second.repeat_floor)
    if repeat and difference <= repeat:
        return "not a result: within the repeat spread"
    routing = max((abs(e.routing_floor or 0.0) for e in (first, second)), default=0.0)
    if routing and difference < routing:
        return "not ranked: closer than the routing term"
    bounds = paired_interval(second.report["per_context"], first.report["per_context"])
    if not resolved(bounds):
        return f"not resolved: the interval {bounds[0]:.3g} to {bounds[1]:.3g} holds 0"
    return None


def _line(entry: Entry, rank: tuple[int | None, str] | None) -> Line:
    report = entry.report
    listed = report.get("quantization_substitutions") or []
    note = _unranked(entry) or (rank[1] if rank else "")
    if listed:
        replaced = ", ".join(str(item["parameter"]) for item in listed)
        note = "; ".join(part for part in (note, f"{DAGGER} {replaced} substituted") if part)
    return Line(
        candidate=str(report["student_model"]),
        mean_kld=float(report["mean_kld"]),
        rank=rank[0] if rank else None,
        mark=DAGGER if listed else "",
        note=note,
    )


def render(sections: dict[str, list[Line]], excluded: Sequence[dict[str, str]] = ()) -> str:
    """Return the board as Markdown, what is left out and why at its end."""
    out = ["# Leaderboard", ""]
    for name, lines in sections.items():
        out += [
            f"## Section {name[:12]}",
            "",
            "| rank | candidate | mean_kld | note |",
            "|---|---|---|---|",
        ]
        out += [
            f"| {line.rank if line.rank is not None else 'unranked'} | {line.candidate}{line.mark} "
            f"| {line.mean_kld!r} | {line.note} |"
            for line in lines
        ]
        out.append("")
    if excluded:
        out += ["## Left out", ""]
        out += [
            f"- {item['candidate']} ({item['repository']} {item['revision']}): {item['reason']}"
            for item in excluded
        ]
        out.append("")
    return "\n".join(out)
