"""One check per law, found by its number; the table of laws says what may be overridden."""

from collections.abc import Callable

from cke.fidelity.checks.disclosure import domains, head_transparency, tail_and_depth
from cke.fidelity.checks.evidence import Evidence, Outcome
from cke.fidelity.checks.measurement import (
    determinism,
    frozen_input,
    manifest_binding,
    real_vocabulary,
    zero_baseline,
)
from cke.fidelity.checks.publication import approvals_complete, freeze_first, reusable_reference
from cke.fidelity.checks.routed import routed_pair
from cke.fidelity.checks.stack import comparability, provenance, storage_integrity
from cke.fidelity.checks.weights import substitutions, weight_binding

CHECKS: dict[int, Callable[[Evidence], Outcome]] = {
    1: zero_baseline,
    2: determinism,
    3: frozen_input,
    4: real_vocabulary,
    5: manifest_binding,
    6: provenance,
    7: storage_integrity,
    8: head_transparency,
    9: tail_and_depth,
    10: comparability,
    11: freeze_first,
    12: reusable_reference,
    13: approvals_complete,
    14: routed_pair,
    15: domains,
    16: weight_binding,
    17: substitutions,
}
"""Law → its check."""
