"""Law 14: the paired intervention on a model that routes to experts."""

from typing import Any

from cke.fidelity.checks.evidence import (
    Document,
    Evidence,
    NotApplicable,
    Outcome,
    Problem,
    field,
    is_digest,
)
from cke.fidelity.fields import MISSING, is_number
from cke.fidelity.paired import PROTOCOL_VERSION, ROUTING_MODE, parity_problems
from cke.fidelity.routing import METHOD
from cke.schemas.reading import canonical_sha256

BINDINGS = {
    "partition": "partition",
    "token_sha256": "token_sha256",
    "reference_config_sha256": "reference_config_sha256",
    "candidate_weights_sha256": "student_weights_sha256",
}
"""A cell's binding, and the deployed report's field that it equals."""
DIVERGENCE = (
    *("selection_flip_rate", "position_flip_rate", "per_layer_flip_rate", "state"),
    *("slot_disagreement_rate", "top1_expert_change_rate"),
)
SYNTHETIC = ("expert_cell", "router_cell", "composite_cell")
"""Diagnostics that round chosen weights; they never stand for QxQ or BxQ."""


def routed_pair(evidence: Evidence) -> Outcome:
    """Law 14."""
    declared = field(evidence.manifest, "reference_routing")
    if declared is MISSING:
        return [Problem("14.1", "the manifest does not say whether the reference routes")]
    if declared is None:
        return NotApplicable("the reference routes to no experts")
    routing = evidence.routing
    if not isinstance(routing, dict):
        return [Problem("14.1", "a routed reference needs QxQ and BxQ; run `cke fidelity paired`")]
    problems = []
    for name in ("qxq_cell", "bxq_cell"):
        problems += _cell(evidence, name, field(routing, name))
    problems += _forced_cell(routing)
    problems += _trace(evidence, routing, declared)
    problems += _backend(routing)
    problems += _numbers(evidence, routing)
    return problems + _divergence(routing)


def _cell(evidence: Evidence, name: str, cell: Any) -> list[Problem]:
    if not isinstance(cell, dict):
        return [Problem("14.1", f"`{name}` is missing")]
    problems = []
    if cell.get("derived_from") in SYNTHETIC:
        problems.append(Problem("14.21", f"`{name}` is a synthetic diagnostic"))
    if cell.get("conditioned") is not None:
        problems.append(Problem("14.19", f"`{name}` conditions after the run"))
    if not is_number(cell.get("mean_kld")):
        problems.append(Problem("14.4", f"`{name}` has no mean"))
    if not isinstance(cell.get("report"), str):
        problems.append(Problem("14.4", f"`{name}` names no report"))
    for binding, source in BINDINGS.items():
        if cell.get(binding) is None or cell[binding] != field(evidence.report, source):
            problems.append(Problem("14.4", f"`{name}` is not bound by `{binding}`"))
    if not isinstance(cell.get("strata"), list):
        problems.append(Problem("14.22", f"`{name}` has no domain records"))
    return problems


def _forced_cell(routing: Document) -> list[Problem]:
    cell = field(routing, "bxq_cell")
    problems = []
    if not is_digest(field(cell, "routing_trace_sha256")):
        problems.append(Problem("14.6", "BxQ has no digest of the trace"))
    if field(cell, "routing_mode") != ROUTING_MODE:
        problems.append(Problem("14.6", f"BxQ's routing mode is not `{ROUTING_MODE}`"))
    if field(cell, "protocol_version") != PROTOCOL_VERSION:
        problems.append(Problem("14.6", f"BxQ is not of protocol {PROTOCOL_VERSION}"))
    if field(routing, "protocol_version") != PROTOCOL_VERSION:
        problems.append(Problem("0.11", f"the pair is not of protocol {PROTOCOL_VERSION}"))
    return problems


def _trace(evidence: Evidence, routing: Document, declared: Document) -> list[Problem]:
    trace = field(routing, "trace")
    if not isinstance(trace, dict):
        return [Problem("14.7", "the trace's manifest is not published")]
    problems = []
    if canonical_sha256(trace) != field(routing, "bxq_cell.routing_trace_sha256"):
        problems.append(Problem("14.7", "BxQ's digest is of another trace"))
    expected = {
        **{name: field(evidence.report, name) for name in ("token_sha256", "rows", "runtime")},
        "reference_config_sha256": field(evidence.manifest, "reference_config_sha256"),
        "reference_weights_sha256": field(evidence.manifest, "reference_weights_sha256"),
        "capture_manifest_sha256": field(evidence.report, "capture_manifest_sha256"),
        "num_experts": declared.get("num_experts"),
        "num_experts_per_tok": declared.get("num_experts_per_tok"),
        "routing_method": METHOD,
    }
    problems += [
        Problem("14.7", f"the trace is stale or unbound: `{name}`")
        for name, value in expected.items()
        if trace.get(name) is None or trace[name] != value
    ]
    layers = trace.get("layer_map")
    if not isinstance(layers, list) or layers != sorted(set(layers)) or not layers:
        problems.append(Problem("14.7", "the trace has no order of layers"))
    elif len(layers) != trace.get("num_layers"):
        problems.append(Problem("14.3", "the trace does not force every routed layer"))
    return problems


def _backend(routing: Document) -> list[Problem]:
    problems = []
    kernel = field(routing, "backend_evidence.kernel")
    if kernel in (MISSING, None, ""):
        problems.append(Problem("14.8", "the active kernel is not named"))
    if field(routing, "backend_evidence.replay_supported") is not True:
        problems.append(Problem("14.8", "ids are not shown to enter before dispatch"))
    if field(routing, "backend_evidence.same_kernel_path") is not True:
        problems.append(Problem("14.9", "replay takes another path than the natural runs"))
    found = parity_problems(field(routing, "controls"))
    problems += [Problem(_parity_line(text), text) for text in found]
    passed = field(routing, "natural_control_parity.passed")
    if passed is not (not found):
        problems.append(Problem("14.14", f"parity says {passed}, the runs say {not found}"))
    if field(routing, "candidate_weights_unchanged") is not True:
        problems.append(Problem("14.15", "the candidate's weights changed during the runs"))
    return problems


def _parity_line(text: str) -> str:
    if "needs" in text or "no control" in text:
        return "14.10"
    return "14.16" if "bound" in text else "14.11"


def _numbers(evidence: Evidence, routing: Document) -> list[Problem]:
    problems = []
    q_mean, b_mean = (field(routing, f"{name}_cell.mean_kld") for name in ("qxq", "bxq"))
    if not is_number(q_mean) or q_mean != field(evidence.report, "mean_kld"):
        problems.append(Problem("14.5", "QxQ's mean is not the deployed natural mean"))
    for name, mean in (("natural", q_mean), ("bxq", b_mean)):
        runs = field(routing, f"controls.{name}")
        if isinstance(runs, list) and any(field(run, "mean_kld") != mean for run in runs):
            problems.append(Problem("14.5", f"the `{name}` runs have another mean than the cell"))
    delta = field(routing, "routing_intervention_delta")
    if not is_number(delta) or not is_number(q_mean) or not is_number(b_mean):
        problems.append(Problem("14.20", "the paired delta is missing"))
    elif delta != q_mean - b_mean:
        problems.append(Problem("14.20", "the paired delta is not QxQ minus BxQ"))
    return problems


def _divergence(routing: Document) -> list[Problem]:
    found = field(routing, "natural_divergence")
    if not isinstance(found, dict):
        text = "natural routing was not measured; rescore with `--measure-routing`"
        return [Problem("14.26", text)]
    problems = [
        Problem("14.17", f"natural divergence lacks `{name}`")
        for name in DIVERGENCE
        if found.get(name) is None
    ]
    state, excess = found.get("state"), found.get("routing_excess_mean")
    if state == "saturated" and (excess is not None or not found.get("saturated")):
        problems.append(Problem("14.18", "a saturated measurement says which case it is"))
    if state == "measured" and not is_number(excess):
        problems.append(Problem("14.26", "the routing term, the ranking floor, is missing"))
    return problems
