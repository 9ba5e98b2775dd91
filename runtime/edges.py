"""The checkpoints of a package in execution order, and the choice of some of them."""

import difflib
import re
from collections.abc import Iterable

from cke.errors import CkeError, Diagnostic, Note
from cke.runtime.package import Package
from cke.runtime.records import join_id, split_id
from cke.schemas.manifest import CheckpointBinding

Bound = tuple[CheckpointBinding, int, int | None]
"""A checkpoint, its stop in the order of execution, and its layer."""

RANGE = re.compile(r"(\d*):(\d*)")


class Edges:
    """The checkpoints of a package by phase and captured key; a key carries its layer.

    `sources` names, for an edge that equals another one by construction, the key of that one.
    """

    def __init__(self, package: Package) -> None:
        assert package.manifest is not None, "a package of a build has a manifest"
        self.bindings: dict[tuple[str, str], Bound] = {}
        self.sources: dict[tuple[str, str], str] = {}
        by_function: dict[tuple[str, str], list[CheckpointBinding]] = {}
        for binding in package.manifest.checkpoints:
            by_function.setdefault((binding.phase, binding.function), []).append(binding)
        for program in package.calls.programs:
            order = 0
            for step in program.steps:
                found = by_function.get((program.phase, step.function), [])
                named = {item.edge: item for item in found if item.alias_of is None}
                for binding in sorted(found, key=lambda item: item.order):
                    key = program.phase, capture_key(binding, step.layer)
                    self.bindings[key] = (binding, order, step.layer)
                    source = named.get(binding.alias_of or "")
                    if source is not None:
                        self.sources[key] = capture_key(source, step.layer)
                    order += 1

    def aliased(self, phase: str, key: str) -> str | None:
        """Return the id of the checkpoint whose value an alias has, when that is one."""
        source = self.sources.get((phase, key))
        if source is None:
            return None
        binding, _, layer = self.bindings[phase, source]
        return join_id(binding.checkpoint.name, layer)

    def keys(self) -> dict[str, set[str]]:
        """Return the captures of each checkpoint name: one, or one for each role."""
        found: dict[str, set[str]] = {}
        for binding, _, _ in self.bindings.values():
            found.setdefault(binding.checkpoint.name, set()).add(capture_key(binding, None))
        return found

    def order(self, phase: str) -> list[str]:
        """Return the checkpoint ids of a phase by stop; the roles of one are a stop each."""
        stops = sorted(
            (order, join_id(binding.checkpoint.name, layer))
            for (found, _), (binding, order, layer) in self.bindings.items()
            if found == phase
        )
        return [name for _, name in stops]

    def total(self, phase: str) -> int:
        """Return how many edges the phase has, every layer counted."""
        return sum(1 for found, _ in self.bindings if found == phase)


def capture_key(binding: CheckpointBinding, layer: int | None) -> str:
    """Return `layer.<L>.<name>.<role>`, as far as there is a layer and a role."""
    checkpoint = binding.checkpoint
    name = checkpoint.name if checkpoint.role is None else f"{checkpoint.name}.{checkpoint.role}"
    return join_id(name, layer)


def select_edges(package: Package, words: Iterable[str]) -> frozenset[str] | None:
    """Return names and ids of checkpoints with every range `start:stop` of stops resolved.

    Stops count from 0 in the order of execution, the one of prefill where there is such a phase.
    None when there are no words: every edge.
    """
    order = Edges(package).order(package.phases[0])
    found: set[str] = set()
    for word in words:
        match = RANGE.fullmatch(word)
        if match is None:
            found.add(word)
            continue
        start, stop = int(match[1] or 0), int(match[2] or len(order))
        if not start < stop <= len(order):
            raise _unknown(word, f"stops from 0 to {len(order)} as `start:stop`", ())
        found |= set(order[start:stop])
    return frozenset(found) or None


def capture_patterns(package: Package, wanted: frozenset[str] | None) -> tuple[str, ...]:
    """Return the captures of the build that names and ids ask for; an unknown one is CKE722."""
    if wanted is None:
        return ("*",)
    edges = Edges(package)
    keys = edges.keys()
    ids = {name for phase in package.phases for name in edges.order(phase)}
    for name in sorted(wanted - keys.keys() - ids):
        near = difflib.get_close_matches(name, keys, 3)
        raise _unknown(name, "the name of a checkpoint", near)
    names = {name if name in keys else split_id(name)[0] for name in wanted}
    return tuple(sorted(key for name in names for key in keys[name]))


def _unknown(got: str, expected: str, near: Iterable[str]) -> CkeError:
    notes = tuple(Note(f"did you mean `{name}`?", label="help") for name in near)
    return CkeError(
        Diagnostic(code="CKE722", message=f"expected {expected}, got `{got}`", notes=notes)
    )
