"""Read the catalogue: every fault with what it must give, written before it is run.

Goal: typed entries, and each of their variants by size, family, request, dtype and oracle.
Non-goal: injecting; see `cke.validator.inject`.
"""

from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from cke.errors import CkeError, Diagnostic
from cke.schemas.validator_selftest import Expected, Kind
from cke.xray.classes import CLASSES, FailureClass

Place = Literal[
    "none",
    "circuit text",
    "build IR",
    "call IR",
    "kernel body",
    "weights file",
    "model config",
    "weight map",
    "schedule",
    "positions",
    "cache index",
    "cache bytes",
    "capture",
    "oracle adapter",
    "profile",
]
FOLDER = "catalogue"


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of one artefact.

    `text` replaces `old` by `new` in a file of a copied package tree. `trace` changes the JSON at
    `path` of a recorded oracle (in the record of checkpoint `record`, when given). `tensor`
    changes the weights file that one `side` loads, `config` the value at `path` of its config.
    `ask` changes an argument of the request:
    `segments`, `join` (the first step is prefilled), `explicit` (tokens are given with a trace),
    `second` (an oracle whose report is cited).
    """

    kind: Literal["text", "trace", "tensor", "config", "ask"]
    file: str = ""
    old: str = ""
    new: str = ""
    path: tuple[str | int, ...] = ()
    record: str = ""
    operation: Literal["set", "add", "remove", "scale", "swap", "tie", "draw"] = "set"
    value: Any = None
    side: Literal["subject", "oracle"] = "subject"
    tensor: str = ""


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be found, in the families named, or in all; no checkpoint where none is due.

    Without an owner the finding has to leave it open.
    """

    failure_class: str = msgspec.field(name="class")
    owner: str | None = None
    checkpoint: str | None = None
    families: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the catalogue; `sizes` gives a text for `{x}` in the mutations, by size.

    The size `below` is a control: a change that no budget can tell from rounding. A double fault
    is run again with the mutations of `fix` taken back, as size `fixed`; `then` must be found.
    """

    id: str
    about: str
    stands_for: str
    place: Place
    families: tuple[str, ...]
    kind: Kind = "fault"
    requests: tuple[str, ...] = ("decode",)
    dtypes: tuple[str, ...] = ("f32",)
    oracles: tuple[str, ...] = ("pytorch",)
    mutations: tuple[Mutation, ...] = ()
    expected: tuple[Expectation, ...] = ()
    sizes: dict[Literal["gross", "moderate", "above", "below"], str] = {}
    fix: tuple[int, ...] = ()
    then: tuple[Expectation, ...] = ()
    light: bool = False

    @property
    def variants(self) -> tuple[str | None, ...]:
        """The sizes; of a double fault, both faults and the later one alone."""
        return tuple(self.sizes) or ((None, "fixed") if self.then else (None,))


class Case(msgspec.Struct, frozen=True):
    """An entry in one configuration: what is run."""

    entry: Entry
    family: str
    request: str
    dtype: str
    oracle: str
    size: str | None = None

    @property
    def id(self) -> str:
        """The name of the case, which is the name of its folder too."""
        size = "" if self.size is None else f".{self.size}"
        return f"{self.entry.id}{size}.{self.family}.{self.request}.{self.dtype}.{self.oracle}"

    @property
    def kind(self) -> Kind:
        """Whether something must be found."""
        return "control" if self.size == "below" else self.entry.kind

    @property
    def expected(self) -> Expected:
        """What must be found; nothing for a control."""
        if self.kind != "fault":
            return Expected(checkpoint_id=None, failure_class=None, fix_owner=None)
        rows = self.entry.then if self.size == "fixed" else self.entry.expected
        row = next(e for e in rows if not e.families or self.family in e.families)
        return Expected(
            checkpoint_id=row.checkpoint, failure_class=row.failure_class, fix_owner=row.owner
        )

    @property
    def mutations(self) -> tuple[Mutation, ...]:
        """The changes, with the size written in."""
        if self.size is None:
            return self.entry.mutations
        if self.size == "fixed":
            left = (i for i in range(len(self.entry.mutations)) if i not in self.entry.fix)
            return tuple(self.entry.mutations[i] for i in left)
        text = self.entry.sizes[self.size]  # type: ignore[index]
        return tuple(
            msgspec.structs.replace(item, new=item.new.replace("{x}", text))
            for item in self.entry.mutations
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Entry, ...] = ()


def read_catalogue(folder: Path | None = None) -> tuple[Entry, ...]:
    """Return every entry, in the order of file names; a bad one is CKE790."""
    found: list[Entry] = []
    for name, data in _sources(folder):
        try:
            entries = msgspec.toml.decode(data, type=_File).fault
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise _bad(name, str(error)) from None
        for entry in entries:
            _check(name, entry, {item.id for item in found})
            found.append(entry)
    return tuple(found)


def catalogue_sha256(folder: Path | None = None) -> str:
    """Return the digest of the catalogue's files."""
    digest = sha256()
    for name, data in _sources(folder):
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


def _sources(folder: Path | None) -> list[tuple[str, bytes]]:
    root = files("cke.validator").joinpath(FOLDER) if folder is None else folder
    named = sorted((item.name, item) for item in root.iterdir() if item.name.endswith(".toml"))
    return [(name, item.read_bytes()) for name, item in named]


def _check(name: str, entry: Entry, before: set[str]) -> None:
    if entry.id in before:
        raise _bad(name, f"`{entry.id}` is defined twice")
    if entry.kind == "fault" and not (entry.mutations and entry.expected):
        raise _bad(name, f"`{entry.id}` expects mutations and what they must give")
    if bool(entry.fix) != bool(entry.then):
        raise _bad(name, f"`{entry.id}` expects `fix` and `then` together")
    for row in (*entry.expected, *entry.then):
        known = CLASSES.get(row.failure_class)
        if known is None or row.owner not in _owners(known):
            raise _bad(
                name, f"`{entry.id}` expects {row.failure_class} of {row.owner}, which is no row"
            )
    for family in entry.families:
        if entry.kind == "fault" and not any(
            not row.families or family in row.families for row in entry.expected
        ):
            raise _bad(name, f"`{entry.id}` says nothing of what `{family}` must give")


def _owners(known: FailureClass) -> tuple[str | None, ...]:
    """Return who may own a class; that of a first token alone may stay open."""
    return (*known.owners, None) if known.stage == "behaviour" else known.owners


def _bad(name: str, message: str) -> CkeError:
    return CkeError(Diagnostic(code="CKE790", file=f"catalogue/{name}", message=message))
