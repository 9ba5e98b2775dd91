"""Laws 16 and 17: which weights were scored, and what the kernels put in a parameter's place."""

from typing import Any

from cke.fidelity.checks.evidence import (
    Document,
    Evidence,
    NotApplicable,
    Outcome,
    Problem,
    field,
    is_count,
    is_digest,
)
from cke.fidelity.fields import MISSING, is_number, key_of

ENTRY = (*("parameter", "kind", "replacement", "affected_layers", "scored_layers", "worst_spread"),)
STATES = ("measured", "substituted", "unavailable")


def weight_binding(evidence: Evidence) -> list[Problem]:
    """Law 16."""
    digest = field(evidence.report, "student_weights_sha256")
    if not is_digest(digest):
        return [Problem("16.1", "the report has no digest of the weights that it scored")]
    problems = []
    if field(evidence.inspection, "student_weights_sha256") != digest:
        problems.append(Problem("16.2", "the published inspection is of other weights"))
    return problems + family_problems((evidence.report, *evidence.family))


def family_problems(reports: tuple[Document, ...]) -> list[Problem]:
    """Return which reports of a family cannot both be true; the baseline is left out."""
    problems = []
    listed = [r for r in reports if not is_baseline(r)]
    for index, first in enumerate(listed):
        for second in listed[index + 1 :]:
            ours, theirs = (field(r, "student_weights_sha256") for r in (first, second))
            means = [field(r, "mean_kld") for r in (first, second)]
            names = f"`{field(first, 'student_model')}` and `{field(second, 'student_model')}`"
            if ours != theirs and is_number(means[0]) and means[0] == means[1]:
                text = f"{names} have one mean and different weights: both are withdrawn"
                problems.append(Problem("16.4", text))
            if ours == theirs and means[0] != means[1] and _same_run(first, second):
                problems.append(Problem("16.6", f"{names} have one digest and different scores"))
    return problems


def _same_run(first: Document, second: Document) -> bool:
    """Whether two results were taken under one key, so that equal weights give equal scores."""
    return key_of(first) == key_of(second)


def is_baseline(report: Document) -> bool:
    """Whether a report is of the reference itself."""
    own = field(report, "student_weights_sha256")
    return own is not MISSING and own == field(report, "reference_weights_sha256")


def substitutions(evidence: Evidence) -> Outcome:
    """Law 17."""
    listed = field(evidence.report, "quantization_substitutions")
    if not isinstance(listed, list):
        return [Problem("17.1", "the report does not say what was substituted")]
    problems = [item for entry in listed for item in _entry(entry)]
    key = field(evidence.report, "comparability_key.substituted")
    named = sorted({str(field(entry, "parameter")) for entry in listed})
    if key is not MISSING and key != named:
        problems.append(Problem("17.6", "the comparability key lacks the substituted parameters"))
    problems += _cells(evidence.routing)
    if problems or listed:
        return problems
    return _empty(evidence)


def _entry(entry: Any) -> list[Problem]:
    problems = []
    for name in ENTRY:
        if field(entry, name) in (MISSING, None, ""):
            line = "17.5" if name == "replacement" else "17.4"
            problems.append(Problem(line, f"a substitution does not state its `{name}`"))
    if problems:
        return problems
    affected, scored, spread = (
        entry[name] for name in ("affected_layers", "scored_layers", "worst_spread")
    )
    if not is_count(affected) or not is_count(scored) or not affected <= scored:
        problems.append(Problem("17.4", f"{affected} of {scored} layers cannot be affected"))
    if not is_number(spread) or not spread >= 1:
        problems.append(Problem("17.4", f"a spread of {spread} is none"))
    return problems


def _empty(evidence: Evidence) -> Outcome:
    """An empty list: clean only where the loaded layers were walked."""
    inspection = evidence.inspection
    walked = field(inspection, "walked") is True and is_count(field(inspection, "scored_layers"))
    recorded = field(inspection, "recorded") == "while_loading"
    if walked and recorded and field(inspection, "scored_layers") > 0:
        layers = field(inspection, "layers")
        replaced = (
            [item for item in layers if item.get("as_exported") is not True]
            if isinstance(layers, list)
            else []
        )
        if replaced or not isinstance(layers, list):
            return [Problem("17.2", "a layer was not used as exported, and no entry says so")]
        return []
    if field(inspection, "routed") is not False:
        return [Problem("17.2", "an empty list without an inspection of the routed experts")]
    if field(inspection, "quantized") is not False:
        text = "a quantised dense candidate needs an inspection recorded while it loaded"
        return [Problem("17.15", text)]
    return NotApplicable("no quantization parameter, and nothing was inspected")


def _cells(routing: Document | None) -> list[Problem]:
    problems = []
    for name in ("qxq_cell", "bxq_cell"):
        cell = field(routing, name)
        if cell is MISSING:
            continue
        problems += [Problem("17.10", f"`{name}` {text}") for text in cell_problems(cell)]
    return problems


def cell_problems(cell: Any) -> list[str]:
    """Return why a cell's state and its number do not belong together."""
    state, mean = field(cell, "state"), field(cell, "mean_kld")
    has_number = is_number(mean)
    if state not in STATES:
        return [f"has the state `{state}`, expected {', '.join(STATES)}"]
    if state == "unavailable" and (has_number or field(cell, "reason") in (MISSING, None, "")):
        return ["is unavailable, and has a number or no reason"]
    if state != "unavailable" and not has_number:
        return [f"is {state}, and has no number"]
    if state == "substituted" and field(cell, "replacement") in (MISSING, None, ""):
        return ["is substituted, and does not name the replacement"]
    return []


def worst_over_workers(ranks: list[list[Document]]) -> list[Document]:
    """Return one entry per parameter of all workers' substitutions, the worst spread of each."""
    found: dict[str, Document] = {}
    for entries in ranks:
        for entry in entries:
            other = found.get(entry["parameter"])
            if other is None or entry["worst_spread"] > other["worst_spread"]:
                found[entry["parameter"]] = entry
    return [found[name] for name in sorted(found)]
