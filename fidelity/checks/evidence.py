"""What a receipt is judged on: documents as they were read, and nothing that is assumed.

Checks read fields with `field`; what a document lacks is MISSING and never an expectation.
"""

from typing import Any, Literal

import msgspec

from cke.fidelity.fields import value_at
from cke.fidelity.suite_reader import Suite

Document = dict[str, Any]
Role = Literal["candidate", "baseline"]


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact folder holds: relative paths, and what its checksums do not cover."""

    paths: tuple[str, ...]
    checksum_problems: tuple[str, ...]
    environment_copies: dict[str, str]
    restriction: Document | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one candidate of a campaign.

    `manifest` is that of the scored capture, `reference` the one published, `live` what this tree
    is now, `family` the other candidates' reports, `page` the one-pager.
    """

    report: Document
    manifest: Document | None
    self_report: Document | None
    environment: Document | None
    suite: Suite | None
    reference: Document | None
    contents: Contents | None
    inspection: Document | None
    live: Document
    approvals: Document
    family: tuple[Document, ...] = ()
    parameters: Document | None = None
    repeat_study: Document | None = None
    routing: Document | None = None
    page: str | None = None
    role: Role = "candidate"


class Problem(msgspec.Struct, frozen=True):
    """A line of a law that does not hold, and why."""

    line: str
    text: str


class NotApplicable(msgspec.Struct, frozen=True):
    """The law has no subject in this evidence."""

    reason: str


Outcome = list[Problem] | NotApplicable


def field(document: Document | None, path: str) -> Any:
    """Return a field of a document; MISSING where there is no document, or no such field."""
    return value_at(document, path)


def is_digest(value: Any) -> bool:
    """Whether a value is 64 lower-case hex digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def is_count(value: Any) -> bool:
    """Whether a value is a non-negative integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
