"""`cke validate`: choose cases, run them, and write the scoreboard in every form."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.errors.files import write_atomically
from cke.schemas.reading import canonical_sha256
from cke.schemas.validator_selftest import SCHEMA, VERSION, Document
from cke.validator.choose import SEED, light_cases, nightly_cases
from cke.validator.entries import Case, catalogue_sha256, read_catalogue
from cke.validator.render import junit, markdown, picture
from cke.validator.run import Kept, Say, run_cases
from cke.validator.sabotage import sabotage_named, sabotaged
from cke.validator.scoreboard import selftest

JSON, MARKDOWN, JUNIT, PICTURE, TREND = (
    "selftest.json",
    "selftest.md",
    "junit.xml",
    "selftest.svg",
    "trend.jsonl",
)


def chosen_cases(
    mode: str, only: tuple[str, ...] = (), sabotage: str | None = None
) -> tuple[Case, ...]:
    """Return the cases of a mode whose id or entry matches a pattern; none is CKE791.

    With a sabotage, they are the cases that must show it.
    """
    entries = read_catalogue()
    cases = light_cases(entries) if mode == "light" else nightly_cases(entries)
    if sabotage is not None:
        return sabotaged(light_cases(entries), sabotage_named(sabotage))
    kept = tuple(
        case
        for case in cases
        if not only or any(fnmatch(case.id, p) or fnmatch(case.entry.id, p) for p in only)
    )
    if not kept:
        raise CkeError(
            Diagnostic(
                code="CKE791",
                message=f"no case of the {mode} choice matches {', '.join(only)}",
                notes=(Note("`cke validate --list` prints every case", label="help"),),
            )
        )
    return kept


def validate(
    out: Path,
    mode: str,
    only: tuple[str, ...] = (),
    jobs: int = 1,
    say: Say = lambda text: None,
    sabotage: str | None = None,
) -> Document:
    """Run the chosen cases and write JSON, Markdown, JUnit, the picture and the trend to `out`."""
    cases = chosen_cases(mode, only, sabotage)
    kept = run_cases(cases, out / "work", jobs, say)
    return write_scoreboard(out, mode, cases, kept)


def write_scoreboard(out: Path, mode: str, cases: Iterable[Case], kept: list[Kept]) -> Document:
    """Write the scoreboard of outcomes in every form, and return it."""
    body = selftest(
        [item.outcome for item in kept],
        tuple(case.id for case in cases),
        mode,
        SEED,
        catalogue_sha256(),
    )
    seconds = {item.outcome.id: item.seconds for item in kept}
    document = Document(
        schema=SCHEMA,
        version=VERSION,
        body=body,
        body_sha256=canonical_sha256(body),
        volatile={
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": dict(seconds),
        },
    )
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    write_atomically(out / JSON, encoded)
    write_atomically(out / MARKDOWN, markdown(body).encode())
    write_atomically(out / JUNIT, junit(body, seconds).encode())
    write_atomically(out / PICTURE, picture(body).encode())
    with (out / TREND).open("a", encoding="utf-8") as trend:
        trend.write(_trend_line(document) + os.linesep)
    return document


def _trend_line(document: Document) -> str:
    body = document.body
    return msgspec.json.encode(
        {
            "when": document.volatile["when"],
            "mode": body.mode,
            "status": body.status,
            "catalogue_sha256": body.catalogue_sha256,
            **msgspec.to_builtins(body.score),
        }
    ).decode()
