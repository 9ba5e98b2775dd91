"""Break one part of X-Ray, or the injector: a scoreboard that stays green then proves nothing."""

from collections.abc import Iterable
from importlib.resources import files

import msgspec

from cke.errors import CkeError, Diagnostic, Note
from cke.validator.entries import Case, Mutation


class Sabotage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is broken, and the cases that must show it."""

    about: str
    cases: tuple[str, ...]
    mutations: tuple[Mutation, ...] = ()
    without_faults: bool = False


def read_sabotages() -> dict[str, Sabotage]:
    """Return every sabotage by its name."""
    data = files("cke.validator").joinpath("sabotage.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, Sabotage])


def sabotage_named(name: str) -> Sabotage:
    """Return a sabotage; an unknown name is CKE792."""
    known = read_sabotages()
    listed = ", ".join(f"`{item}`" for item in known)
    if name not in known:
        raise CkeError(
            Diagnostic(
                code="CKE792",
                message=f"expected a sabotage of {listed}, got `{name}`",
                notes=(Note("choose one of these with `--sabotage`", label="help"),),
            )
        )
    return known[name]


def sabotaged(cases: Iterable[Case], sabotage: Sabotage) -> tuple[Case, ...]:
    """Return the cases that show a sabotage, with its changes beside their own."""
    return tuple(_with(case, sabotage) for case in cases if case.id in sabotage.cases)


def _with(case: Case, sabotage: Sabotage) -> Case:
    own = () if sabotage.without_faults else case.entry.mutations
    entry = msgspec.structs.replace(case.entry, mutations=(*own, *sabotage.mutations))
    return msgspec.structs.replace(case, entry=entry)
