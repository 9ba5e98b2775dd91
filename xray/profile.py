"""Profiles: what is observed of a backend at a dtype, outside circuits (XRAY-12, XRAY-61).

An entry names the rule of the budget and the storage that the backend was seen to use. A backend
and dtype without an entry is a finding, never a default.
"""

import tomllib
from importlib.resources import files

import msgspec
from msgspec import UnsetType

from cke.runtime.records import RUN_TO_WIRE

RULES = ("forward_error",)


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One backend at one dtype: the budget's rule, the usual storage, and its narrow arithmetic.

    `narrow` lists dtypes narrower than the storage that its arithmetic was seen to round values to,
    where a record says so; what no entry lists widens no budget.
    """

    rule: str
    storage: str | None = None
    narrow: tuple[str, ...] = ()


def read_profile(backend: str, text: str) -> dict[str, Entry]:
    """Return the entries of a profile by dtype; a rule that does not exist is a ValueError."""
    entries = msgspec.convert(tomllib.loads(text), dict[str, Entry])
    for dtype, entry in entries.items():
        if entry.rule not in RULES:
            raise ValueError(f"{backend} {dtype}: `{entry.rule}` is not a rule of {RULES}")
    return entries


def profile_entry(backend: str, dtype: str) -> Entry | None:
    """Return the entry of a backend at a run dtype (f32, bf16, …), None when there is none."""
    file = files("cke.xray").joinpath("profiles", f"{backend}.toml")
    if not file.is_file():
        return None
    entries = read_profile(backend, file.read_text(encoding="utf-8"))
    return entries.get(RUN_TO_WIRE.get(dtype, dtype))


def narrowed(backend: str, dtype: str, named: str | UnsetType) -> tuple[str, ...]:
    """Return the narrow dtype that a record names, when the profile knows it of the backend."""
    entry = profile_entry(backend, dtype)
    known = () if entry is None else entry.narrow
    return () if isinstance(named, UnsetType) or named not in known else (named,)
