"""Stack profiles: what each field of Law 6 is on a stack, or why there is no such thing on it."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

ABSENT = "absent: "
FIELDS = (
    *("host", "kernel", "gpu", "driver", "vbios", "ecc", "persistence", "clocks", "toolchain"),
    *("torch", "vllm", "commit", "interpreter", "packages", "checkpoints", "processor"),
)
"""Every field that Law 6 asks for; a profile says something of each."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`present` maps a field to its place in the environment report, `absent` to its reason."""

    title: str
    present: dict[str, str]
    absent: dict[str, str]


@cache
def profiles() -> dict[str, Profile]:
    """Return every profile; each speaks of every field, once."""
    text = files("cke.fidelity").joinpath("profiles.toml").read_text("utf-8")
    found = msgspec.convert(tomllib.loads(text), dict[str, Profile])
    for name, profile in found.items():
        spoken = [*profile.present, *profile.absent]
        assert sorted(spoken) == sorted(FIELDS), f"profile `{name}` leaves a field out"
    return found


def stack_fields(profile: str, report: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Law 6 with their values; one that the stack lacks says why."""
    found = profiles()[profile]
    values = {field: lookup(report, path) for field, path in found.present.items()}
    return {**values, **{field: ABSENT + reason for field, reason in found.absent.items()}}


def lookup(document: Any, path: str) -> Any:
    """Return what stands at a dotted path of a document, None when nothing does."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document
