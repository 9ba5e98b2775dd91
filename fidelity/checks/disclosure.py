"""Laws 8, 9 and 15: head, tail, depth and domains, recomputed where they can be."""

import math
from typing import Any

from cke.fidelity.checks.evidence import (
    Document,
    Evidence,
    NotApplicable,
    Outcome,
    Problem,
    field,
    is_count,
)
from cke.fidelity.fields import MISSING, is_number
from cke.fidelity.statistics import MEAN_BOUND, POSITION_BOUND, outlier_driven

TAIL = ("median_kld", "p90_kld", "p99_kld", "max_kld", "depth_buckets", "top1_agreement")
STRATUM = (
    *("contexts", "mean_kld", "median_context_mean", "p90_context_mean", "worst_context"),
    *("mean_ref_top1_prob", "outlier_driven", "reference_was"),
)
CLOSE = 1e-9
"""Recomputed means agree to this fraction: the parts were summed in another order."""


def head_transparency(evidence: Evidence) -> list[Problem]:
    """Law 8."""
    report = evidence.report
    trunk, deployed, delta = (
        field(report, name) for name in ("trunk_mean_kld", "deployed_mean_kld", "head_delta_kld")
    )
    problems = [
        Problem("8.1", f"`{name}` is not a finite number")
        for name, value in (("trunk_mean_kld", trunk), ("deployed_mean_kld", deployed))
        if not is_number(value)
    ]
    if not is_number(delta):
        problems.append(Problem("8.2", "the report lacks `head_delta_kld`"))
    elif not problems and delta != deployed - trunk:
        problems.append(Problem("8.3", "`head_delta_kld` is not deployed minus trunk"))
    for name in ("student_lm_head", "teacher_lm_head"):
        if not isinstance(field(report, f"{name}.weights_sha256"), str):
            problems.append(Problem("8.2", f"the report lacks the state of `{name}`"))
    if is_number(deployed) and deployed != field(report, "mean_kld"):
        problems.append(Problem("8.1", "`mean_kld` is not the deployed mean"))
    return problems + _workers(field(report, "trunk_worker_agreement"))


def _workers(agreement: Any) -> list[Problem]:
    if not isinstance(agreement, dict) or not is_count(agreement.get("workers")):
        return [Problem("8.6", "the divergence between workers is not reported")]
    bounds = {"max_abs_delta": POSITION_BOUND, "mean_rel_delta": MEAN_BOUND}
    return [
        Problem("8.5", f"workers differ: `{name}` is {agreement.get(name)}, at most {bound}")
        for name, bound in bounds.items()
        if not is_number(agreement.get(name)) or not agreement[name] <= bound
    ]


def tail_and_depth(evidence: Evidence) -> list[Problem]:
    """Law 9."""
    report = evidence.report
    problems = []
    for name in TAIL:
        value = field(report, name)
        present = isinstance(value, list) and value if name == "depth_buckets" else is_number(value)
        if not present:
            problems.append(Problem("9.1", f"the report lacks `{name}`"))
    return problems or _consistent(report)


def _consistent(report: Document) -> list[Problem]:
    problems = []
    ordered = [report[name] for name in ("median_kld", "p90_kld", "p99_kld", "max_kld")]
    if ordered != sorted(ordered):
        problems.append(Problem("9.3", "median, p90, p99 and maximum are not in order"))
    buckets = report["depth_buckets"]
    count = sum(item.get("n", 0) for item in buckets)
    if count != field(report, "num_positions"):
        problems.append(Problem("9.3", f"the depth buckets hold {count} positions"))
    total = math.fsum(item["n"] * (item.get("mean_kld") or 0.0) for item in buckets)
    if not _agrees(total / max(count, 1), field(report, "mean_kld")):
        problems.append(Problem("9.3", "the depth buckets do not make up `mean_kld`"))
    return problems


def _agrees(derived: float, stated: Any) -> bool:
    return is_number(stated) and math.isclose(derived, stated, rel_tol=CLOSE, abs_tol=1e-15)


def domains(evidence: Evidence) -> Outcome:
    """Law 15."""
    declared = evidence.suite.manifest.get("strata", MISSING) if evidence.suite else MISSING
    if not isinstance(declared, list):
        return [Problem("15.11", "the suite's manifest does not say which strata it has")]
    if len(declared) < 2:
        return NotApplicable("the suite declares fewer than two strata")
    problems = _records(evidence)
    if problems:
        return problems
    problems = table_problems(evidence, field(evidence.report, "strata"))
    routed = isinstance(evidence.routing, dict)
    for name in ("qxq_cell", "bxq_cell") if routed else ():
        cell = field(evidence.routing, f"{name}.strata")
        problems += [
            Problem("15.9", f"`{name}`: {item.text}") for item in table_problems(evidence, cell)
        ]
    return problems


def _records(evidence: Evidence) -> list[Problem]:
    records, rows = field(evidence.report, "per_context"), field(evidence.report, "rows")
    if not isinstance(records, list) or len(records) != rows:
        return [Problem("15.5", f"the report needs one record per scored row, {rows}")]
    assert evidence.suite is not None, "domains were found in a suite"
    known = {item.context_id: item.stratum for item in evidence.suite.contexts}
    names = [item.get("context_id") for item in records]
    problems = []
    if len(set(names)) != len(names):
        problems.append(Problem("15.5", "a context has two records"))
    unknown = [name for name in names if name not in known]
    if unknown:
        problems.append(Problem("15.5", f"`{unknown[0]}` is no context of the suite"))
    elif any(item.get("stratum") != known[item["context_id"]] for item in records):
        problems.append(Problem("15.5", "a record names another stratum than the suite"))
    return problems


def table_problems(evidence: Evidence, table: Any) -> list[Problem]:
    """Return what a table of strata lacks, or does not agree with, for the scored contexts."""
    if not isinstance(table, list):
        return [Problem("15.1", "there is no table of strata")]
    records = evidence.report["per_context"]
    scored = sorted({item["stratum"] for item in records})
    problems = []
    if sorted(str(item.get("stratum")) for item in table) != scored:
        problems.append(Problem("15.3", f"the table covers other strata than {', '.join(scored)}"))
    for item in table:
        lacking = [name for name in STRATUM if item.get(name) is None]
        if lacking:
            problems.append(Problem("15.2", f"`{item.get('stratum')}` lacks `{lacking[0]}`"))
    if problems:
        return problems
    if sum(item["contexts"] for item in table) != evidence.report["rows"]:
        problems.append(Problem("15.4", "the strata's contexts do not add up to the rows"))
    for item in table:
        if item["outlier_driven"] != outlier_driven(item["mean_kld"], item["median_context_mean"]):
            text = f"`{item['stratum']}` is not named as outliers make it"
            problems.append(Problem("15.7", text))
    if table is field(evidence.report, "strata"):
        problems += _weighted(evidence.report, table)
    return problems


def _weighted(report: Document, table: list[Document]) -> list[Problem]:
    problems = []
    for item in table:
        mine = [r for r in report["per_context"] if r["stratum"] == item["stratum"]]
        count = sum(r["positions"] for r in mine)
        mean = math.fsum(r["positions"] * r["mean_kld"] for r in mine) / max(count, 1)
        if not _agrees(mean, item["mean_kld"]):
            text = f"`{item['stratum']}` is not the mean of its positions"
            problems.append(Problem("15.6", text))
    count = sum(item["positions"] for item in table)
    mean = math.fsum(item["positions"] * item["mean_kld"] for item in table) / max(count, 1)
    if not _agrees(mean, field(report, "mean_kld")):
        problems.append(Problem("15.12", "the strata do not make up `mean_kld`"))
    return problems
