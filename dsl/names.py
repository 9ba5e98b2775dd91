"""Names: the glossary of dims, suggestions for names that are not known."""

from collections.abc import Mapping
from difflib import get_close_matches

from cke.errors import Note, Span

GLOSSARY = {
    "B": "batch",
    "T": "query positions",
    "S": "key positions",
    "D": "model width",
    "H": "query heads",
    "K": "kv heads",
    "E": "head width",
    "F": "ffn width",
    "V": "vocabulary",
    "L": "layers",
    "X": "experts",
    "A": "experts per token",
    "M": "expert width",
    "W": "window",
}
"""Dims that a circuit need not explain."""


def did_you_mean(name: str, places: Mapping[str, Span | None]) -> tuple[Note, ...]:
    """Return a help note that names the nearest known name and its place, if any is near."""
    near = get_close_matches(name, places, 1, cutoff=0.7)
    if not near:
        return ()
    place = places[near[0]]
    where = f" ({place})" if place is not None else ""
    return (Note(f"did you mean `{near[0]}`{where}?", label="help"),)
