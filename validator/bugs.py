"""Public bugs of model bring-up: which fault of the catalogue stands for each, or why none can."""

from importlib.resources import files

import msgspec

from cke.validator.entries import Case, Entry, read_catalogue
from cke.xray.classes import Owner


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row: what was wrong, and whose it was; `differs` says why its fault is named otherwise."""

    row: int
    thread: str
    about: str
    owner: Owner
    differs: str | None = None
    missing: str | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bug: tuple[Bug, ...]


def read_bugs() -> tuple[Bug, ...]:
    """Return every row, in order."""
    data = files("cke.validator").joinpath("public_bugs.toml").read_bytes()
    return msgspec.toml.decode(data, type=_File).bug


def entries_by_row() -> dict[int, tuple[Entry, ...]]:
    """Return the faults that stand for a row: of the row's owner first, of running sides first."""
    owners = {bug.row: bug.owner for bug in read_bugs()}
    found: dict[int, list[Entry]] = {}
    for entry in read_catalogue():
        kind, _, number = entry.stands_for.partition(" ")
        if kind == "bug":
            found.setdefault(int(number), []).append(entry)

    def order(entry: Entry, row: int) -> tuple[bool, bool]:
        recorded = entry.oracles[0].endswith(".trace")
        return entry.expected[-1].owner != owners[row], recorded

    return {
        row: tuple(sorted(entries, key=lambda entry: order(entry, row)))
        for row, entries in sorted(found.items())
    }


def row_cases() -> dict[int, Case]:
    """Return one case of each row that a fault stands for: the first of its first fault."""
    return {
        row: Case(
            first := entries[0],
            first.families[0],
            first.requests[0],
            first.dtypes[0],
            first.oracles[0],
            next(iter(first.sizes), None),
        )
        for row, entries in entries_by_row().items()
    }
