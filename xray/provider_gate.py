"""The monotonic provider gate: no checkpoint may be further from the oracle than it was.

It compares two numerical reports of one oracle trace, row by row. It knows no tolerance of the
profiles: a row that was within its budget may not get worse either.
"""

from collections.abc import Iterator
from typing import Any

from cke.kernel_registry.contract_files import KernelContract
from cke.schemas.numerical_report import Report, Row
from cke.schemas.provider_gate import EPSILON, GateRow, ProviderGate
from cke.schemas.reading import canonical_sha256

Key = tuple[int, str, str | None]


def provider_gate(
    incumbent: KernelContract,
    candidate: KernelContract,
    before: Report,
    after: Report,
    epsilon: float = EPSILON,
) -> ProviderGate:
    """Return the gate of a candidate; it is promoted when no reason speaks against it."""
    rows = tuple(_rows(before, after, epsilon))
    made = [row for row in after.rows if row.kernel_id == candidate.id and row.metrics is not None]
    reasons = tuple(_reasons(incumbent, candidate, before, after, rows, len(made)))
    return ProviderGate(
        operator=candidate.operator,
        incumbent=incumbent.id,
        candidate=candidate.id,
        incumbent_contract_id=incumbent.contract_id,
        candidate_contract_id=candidate.contract_id,
        equivalence_group=candidate.equivalence_group,
        epsilon=epsilon,
        promoted=not reasons,
        reasons=reasons,
        calls=len(made),
        rows=rows,
        subject=after.subject,
        oracle=after.oracle,
        incumbent_report_sha256=canonical_sha256(before),
        candidate_report_sha256=canonical_sha256(after),
    )


def _reasons(
    incumbent: KernelContract,
    candidate: KernelContract,
    before: Report,
    after: Report,
    rows: tuple[GateRow, ...],
    calls: int,
) -> Iterator[str]:
    if candidate.equivalence_group != incumbent.equivalence_group:
        yield (
            f"`{candidate.id}` is of group `{candidate.equivalence_group}`, "
            f"`{incumbent.id}` of `{incumbent.equivalence_group}`"
        )
    if candidate.validation.state != "validated":
        yield f"`{candidate.id}` is {candidate.validation.state}, and must be validated"
    if before.oracle.get("trace_sha256") != after.oracle.get("trace_sha256"):
        yield "the two reports compare with different traces of the oracle"
    if not calls:
        yield f"no compared row was made by `{candidate.id}`: nothing was shown"
    worse = [row for row in rows if row.state == "worse"]
    if worse:
        yield f"{len(worse)} of {len(rows)} rows regress, first {worse[0].checkpoint_id}"
    missing = [row for row in rows if row.state == "missing"]
    if missing:
        yield f"{len(missing)} rows are in one run only, first {missing[0].checkpoint_id}"
    if len(after.rankings) < len(before.rankings) or _flips(after) > _flips(before):
        yield "a first token flips that did not, or is not compared any more"


def _flips(report: Report) -> int:
    return sum(len(ranking.flips) for ranking in report.rankings)


def _rows(before: Report, after: Report, epsilon: float) -> Iterator[GateRow]:
    old, new = (_measured(report) for report in (before, after))
    for key in dict.fromkeys((*old, *new)):
        segment, name, role = key
        left, right = old.get(key), new.get(key)
        yield GateRow(
            checkpoint_id=name,
            role=role,
            segment=segment,
            incumbent_relative_rmse=_metric(left, "relative_rmse"),
            candidate_relative_rmse=_metric(right, "relative_rmse"),
            incumbent_max_abs=_metric(left, "max_abs"),
            candidate_max_abs=_metric(right, "max_abs"),
            state=_state(left, right, epsilon),
            detail="" if left and right else f"not in the run of the {_absent(left)}",
        )


def _absent(left: Row | None) -> str:
    return "incumbent" if left is None else "candidate"


def _measured(report: Report) -> dict[Key, Row]:
    return {
        (row.segment, row.checkpoint_id, row.role): row
        for row in report.rows
        if row.metrics is not None
    }


def _metric(row: Row | None, name: str) -> float | None:
    value: float | None = None if row is None else getattr(row.metrics, name)
    return value


def _state(left: Row | None, right: Row | None, epsilon: float) -> Any:
    if left is None or right is None or left.metrics is None or right.metrics is None:
        return "missing"
    if right.metrics.mismatched_nonfinite > left.metrics.mismatched_nonfinite:
        return "worse"
    better = False
    for name in ("relative_rmse", "max_abs"):
        was, now = _metric(left, name), _metric(right, name)
        if was is None and now is None:
            continue
        if now is None or (was is not None and now > was + epsilon):
            return "worse"
        better = better or was is None or now < was - epsilon
    return "better" if better else "equal"


def told(gate: ProviderGate) -> str:
    """Return the gate on one screen."""
    counts = {
        state: sum(row.state == state for row in gate.rows)
        for state in ("equal", "better", "worse", "missing")
    }
    verb = "may take the place of" if gate.promoted else "may not take the place of"
    lines = [
        f"`{gate.candidate}` {verb} `{gate.incumbent}` as the provider of `{gate.operator}`.",
        f"{len(gate.rows)} rows against {gate.oracle.get('producer')}, {gate.calls} of them its "
        "own: " + ", ".join(f"{count} {state}" for state, count in counts.items()),
        *(f"  no: {reason}" for reason in gate.reasons),
    ]
    worse = sorted((row for row in gate.rows if row.state == "worse"), key=_regress, reverse=True)
    for row in worse[:8]:
        name = row.checkpoint_id + (f" [{row.role}]" if row.role else "")
        lines.append(
            f"  {name} in forward {row.segment}: relative RMSE "
            f"{_number(row.incumbent_relative_rmse)} becomes "
            f"{_number(row.candidate_relative_rmse)}, max_abs {_number(row.incumbent_max_abs)} "
            f"becomes {_number(row.candidate_max_abs)}"
        )
    if len(worse) > 8:
        lines.append(f"  … {len(worse) - 8} more; --format json has them all")
    return "\n".join(lines)


def _regress(row: GateRow) -> float:
    return (row.candidate_relative_rmse or 0.0) - (row.incumbent_relative_rmse or 0.0)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3g}"
