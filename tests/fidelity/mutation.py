"""Changes of one field of evidence, and the refusal that each expects."""

from collections.abc import Callable
from typing import Any

import msgspec

from cke.fidelity.checks.evidence import Evidence
from tests.fidelity.conftest import judged, lines_of

REMOVE = object()
Change = Callable[[Evidence], Evidence]


def put(document: str, path: str, value: Any = REMOVE) -> Change:
    """Set, or remove, a dotted path of one of the documents."""

    def change(evidence: Evidence) -> Evidence:
        holder: Any = getattr(evidence, document)
        *parents, last = path.split(".")
        for name in parents:
            holder = holder[int(name) if name.isdigit() else name]
        key: Any = int(last) if last.isdigit() and isinstance(holder, list) else last
        if value is REMOVE:
            del holder[key]
        else:
            holder[key] = value(holder.get(key)) if callable(value) else value
        return evidence

    return change


def swap(document: str, value: Any) -> Change:
    """Put another document in a document's place."""
    return lambda evidence: msgspec.structs.replace(evidence, **{document: value})


def both(*changes: Change) -> Change:
    """Several changes in order."""

    def change(evidence: Evidence) -> Evidence:
        for item in changes:
            evidence = item(evidence)
        return evidence

    return change


def assert_fails(evidence: Evidence, change: Change, line: str) -> None:
    """The change makes this very line fail, which held before, and nothing is compliant then."""
    assert line not in lines_of(evidence)
    changed = change(evidence)
    receipt = judged(changed)
    assert line in {found for item in receipt.findings for found in item.lines}
    assert int(line.partition(".")[0]) in receipt.failed_laws
    assert not receipt.compliant
