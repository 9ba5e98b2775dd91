"""The campaign file: which suite, reference and candidates, and what is left out and why."""

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from cke.fidelity.candidates import FusedScale
from cke.fidelity.capture import Storage
from cke.fidelity.integer_activations import Activations
from cke.fidelity.leaderboard import exclusion_problems
from cke.fidelity.refusal import refuse
from cke.fidelity.suite import SuiteRequest
from cke.schemas.reading import convert, read_json


class CandidatePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate: a model at `path`, or one made of the reference in `format`, and its kernels.

    `weights_sha256` pins the weights: a folder that holds others is refused.
    """

    path: str | None = None
    format: str | None = None
    head: bool = False
    fused_scale: FusedScale = "own"
    activations: Activations = "float"
    weights_sha256: str | None = None


class SuitePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite that the campaign freezes, of the shipped texts, with the reference's tokenizer."""

    contexts: int
    length: int
    recipe: str = "small-1"

    @property
    def request(self) -> SuiteRequest:
        """What the suite is built of."""
        return SuiteRequest(contexts=self.contexts, length=self.length, recipe=self.recipe)


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A campaign file; paths in it are relative to the file and may name `${VARIABLES}`."""

    suite: str | SuitePlan
    reference: str
    candidates: dict[str, str | CandidatePlan]
    rows: int | None = None
    partition: Literal["analysis", "qualification"] = "analysis"
    storage: Storage = "hidden"
    excluded: tuple[dict[str, str], ...] = ()
    approvals: dict[str, dict[str, str]] | str = {}
    repeat_study: str | None = None
    freeze_receipt: str | None = None
    frozen_parameters: str | None = None

    def planned(self, name: str) -> CandidatePlan:
        """Return a candidate of the file, a bare path as a model at that path."""
        found = self.candidates[name]
        return CandidatePlan(path=found) if isinstance(found, str) else found


def read_plan(path: Path) -> Plan:
    """Return the plan of a TOML file."""
    try:
        value = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse("CKE873", f"expected a campaign file: {error}", file=path.name)
    plan = convert(value, Plan, path)
    problems = []
    for name in plan.candidates:
        found = plan.planned(name)
        if (found.path is None) == (found.format is None):
            problems.append(f"candidate `{name}` expects `path` or `format`, one of the two")
    for item in plan.excluded:
        problems += exclusion_problems(item)
    if problems:
        refuse("CKE873", problems, file=path.name)
    return plan


def located(text: str, base: Path) -> Path:
    """Return a path of a plan; CKE873 for a variable that is not set."""
    expanded = os.path.expandvars(text)
    if "${" in expanded:
        refuse("CKE873", f"`{text}` names a variable that is not set")
    return base / expanded


def document(value: dict[str, Any] | str | None, base: Path) -> dict[str, Any] | None:
    """Return a document that a plan holds, or names by its file."""
    if isinstance(value, str):
        path = located(value, base)
        found: dict[str, Any] = convert(read_json(path), dict[str, Any], path)
        return found
    return value
