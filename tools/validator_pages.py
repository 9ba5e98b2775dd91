"""The page on public bugs, made from the fault catalogue."""

from cke.schemas.validator_selftest import Expected
from cke.validator.bugs import Bug, entries_by_row, read_bugs, row_cases
from cke.validator.entries import Entry


def bugs_page() -> str:
    """Every public bug, the faults that stand for it and what X-Ray calls them."""
    bugs, entries, cases = read_bugs(), entries_by_row(), row_cases()
    found = [bug for bug in bugs if bug.row in cases]
    lines = [
        "# Public bugs, reproduced",
        "",
        "Bugs of model bring-up from public threads, and the faults of the catalogue that stand",
        f"for them: {len(found)} of {len(bugs)} rows. A test injects the first fault of a row, and",
        "X-Ray must name the edge, class and owner beside it; `cke validate --only NAME` runs any",
        "of them. Where a finding is the circuit's, a counterfactual must confirm it.",
        "",
        "| row | what was wrong | faults that stand for it | first edge | class | owner |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(bug, entries[bug.row], cases[bug.row].expected) for bug in found]
    lines += [
        "",
        "## Named otherwise than in the thread",
        "",
        "| row | theirs | why ours differs |",
    ]
    lines += ["|---|---|---|"]
    lines += [f"| {bug.row} | `{bug.owner}` | {bug.differs} |" for bug in found if bug.differs]
    lines += ["", "## Not reproduced", "", "| row | what was wrong | what is missing |"]
    lines += ["|---|---|---|"]
    lines += [f"| {_link(bug)} | {bug.about} | {bug.missing} |" for bug in bugs if bug.missing]
    return "\n".join(lines) + "\n"


def _link(bug: Bug) -> str:
    repository, _, number = bug.thread.partition("#")
    return f"[{bug.row}](https://github.com/{repository}/issues/{number})"


def _row(bug: Bug, entries: tuple[Entry, ...], expected: Expected) -> str:
    names = ", ".join(f"`{entry.id}`" for entry in entries)
    edge = f"`{expected.checkpoint_id}`" if expected.checkpoint_id else "before any edge"
    return (
        f"| {_link(bug)} | {bug.about} | {names} | {edge} | `{expected.failure_class}` "
        f"| `{expected.fix_owner}` |"
    )
