"""The laws as data: one table that the checker, the receipt, the pages and the tests read.

Non-goal: judging; `cke.fidelity.checks` holds one check per law, found by the number here.
"""

import hashlib
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from cke.schemas.reading import canonical_json

Override = Literal["never", "conditional"]


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One law: what it requires, why, its check, and when a named human may override it.

    Number 0 is the program around the laws. `lines` are the testable statements.
    """

    number: int
    title: str
    requirement: str
    reason: str
    check: str
    override: Override
    cases: str
    lines: dict[str, str]
    superseded_by: int | None = None


class Transition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What moving an artifact to the next version takes, and of which candidates."""

    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")
    applies: Literal["all", "routed", "partly_quantized", "multi_worker"]
    action: Literal["reassemble", "rescore", "rescore_and_recapture", "rescore_or_deviation"]
    reason: str


class Laws(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All laws of one version; `digests` binds each version to the text of its laws."""

    version: int
    status: Literal["draft"]
    digests: dict[str, str]
    laws: tuple[Law, ...] = msgspec.field(name="law")
    transitions: tuple[Transition, ...] = msgspec.field(name="transition")


@cache
def laws() -> Laws:
    """Return the table."""
    text = files("cke.fidelity").joinpath("laws.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Laws)


LAWS_VERSION = laws().version


def law(number: int) -> Law:
    """Return the law of that number."""
    return next(item for item in laws().laws if item.number == number)


def text_digest(table: Laws) -> str:
    """Return the digest of what the laws mean: every part of every law, and the transitions."""
    body = {"laws": table.laws, "transitions": table.transitions}
    return hashlib.sha256(canonical_json(body)).hexdigest()


def table_problems(table: Laws) -> list[str]:
    """Return why the table is not one that may be used: numbering, parts, lines and digest."""
    numbers = [item.number for item in table.laws]
    problems = []
    if numbers != list(range(len(numbers))) or len(numbers) < 18:
        problems.append(f"laws are append-only, from 1 to 17 at least; got {numbers}")
    for item in table.laws:
        parts = (item.title, item.requirement, item.reason, item.check)
        if not all(parts) or (item.override == "conditional") != bool(
            item.cases and item.override == "conditional"
        ):
            problems.append(f"law {item.number} lacks one of its four parts")
        problems += [
            f"line {line} stands under law {item.number}"
            for line in item.lines
            if line.partition(".")[0] != str(item.number)
        ]
    if table.digests.get(str(table.version)) != text_digest(table):
        problems.append(f"the laws' text is not that of version {table.version}: raise the version")
    return problems


def required_actions(
    start: int, *, routed: bool, partly_quantized: bool, multi_worker: bool
) -> list[Transition]:
    """Return what a result of laws version `start` needs to become one of the current version.

    A transition that does not apply to the candidate is a reassembly.
    """
    applies = {
        "all": True,
        "routed": routed,
        "partly_quantized": partly_quantized,
        "multi_worker": multi_worker,
    }
    steps = [item for item in laws().transitions if item.start >= start]
    return [
        item
        if applies[item.applies]
        else msgspec.structs.replace(item, action="reassemble", reason="does not apply")
        for item in steps
    ]


def may_relabel(start: int, *, routed: bool, partly_quantized: bool, multi_worker: bool) -> bool:
    """Whether a result of that version moves to the current one without a new measurement."""
    actions = required_actions(
        start, routed=routed, partly_quantized=partly_quantized, multi_worker=multi_worker
    )
    return all(item.action == "reassemble" for item in actions)


def contract_page() -> str:
    """Return the page of the laws with every line, in the form that the contract table reads."""
    table = laws()
    out = [
        "# Contract lines: the fidelity laws",
        "",
        f"Laws version {table.version}, status: {table.status}. Each law has a requirement, a",
        "reason, an automated check and an override rule; tests carry the numbers of its lines.",
        "",
    ]
    for item in table.laws:
        heading = item.title if item.number == 0 else f"Law {item.number}: {item.title}"
        override = "never" if item.override == "never" else f"only where {item.cases}"
        out += [f"## {heading}", "", f"**Required.** {item.requirement}", ""]
        out += [f"**Why.** {item.reason}", "", f"**Check.** {item.check}", ""]
        out += [f"**Override.** {override}", "", "| line | statement |", "|---|---|"]
        out += [f"| LAW-{line} | {text} |" for line, text in item.lines.items()]
        out.append("")
    out += ["## Versions", "", "| from | to | candidates | action |", "|---|---|---|---|"]
    out += [
        f"| {item.start} | {item.end} | {item.applies} | {item.action.replace('_', ' ')} |"
        for item in table.transitions
    ]
    return "\n".join(out) + "\n"
