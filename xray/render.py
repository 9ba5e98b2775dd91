"""A numerical report as text: the table in graph order, shortened to what deserves a look."""

from collections.abc import Iterable

from cke.schemas.numerical_report import Report, Row

HEAD = ("stop", "checkpoint", "status", "max_abs", "rel_rmse", "gate", "cosine", "exact", "worst")
SHOWN = 40


def human(report: Report) -> str:
    """Return one screen: verdict, coverage, the rows that matter, conservation."""
    lines = [*_summary(report), "", *_table(list(_chosen(report)))]
    hidden = len(report.rows) - len(list(_chosen(report)))
    if hidden:
        lines.append(f"… {hidden} more rows; --format json has them all")
    return "\n".join([*lines, "", *_tail(report)])


def markdown(report: Report) -> str:
    """Return the whole table in Markdown."""
    lines = ["# Numerical report", "", *(f"- {line}" for line in _summary(report)), ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in report.rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in _tail(report))])


def _summary(report: Report) -> Iterable[str]:
    yield report.banner
    yield f"verdict: {report.verdict or 'none'} ({report.status}), {report.backend} " + (
        report.backend_version
    )
    coverage = report.coverage
    total = coverage.edges_total
    edges = f"; the graph has {total} edges" if total is not None else ""
    yield (
        f"coverage: {coverage.compared}/{coverage.subject_captured} of the subject's captures "
        f"compared, {coverage.oracle_captured} captured of the oracle{edges}"
    )
    if coverage.not_compared:
        yield f"not compared: {', '.join(coverage.not_compared[:6])}" + (
            f" and {len(coverage.not_compared) - 6} more" if len(coverage.not_compared) > 6 else ""
        )
    by_stop = {row.stop: row for row in report.rows}
    if report.first_non_exact is not None:
        row = by_stop[report.first_non_exact]
        yield (
            f"byte-exact prefix: {report.byte_exact_prefix}; first non-exact: "
            f"{row.checkpoint_id} (stop {row.stop})"
        )
    if report.first_over_gate is not None:
        row = by_stop[report.first_over_gate]
        yield f"first over its gate: {row.checkpoint_id} (stop {row.stop})"


def _chosen(report: Report) -> Iterable[Row]:
    marks = {report.first_non_exact, report.first_over_gate}
    failing = [
        row for row in report.rows if row.status in ("over", "nonfinite", "layout", "summary_over")
    ]
    marks |= {row.stop for row in failing[: SHOWN // 2]}
    for row in report.rows:
        summit = row.layer is None or row.checkpoint_id.endswith(".layer_output")
        if row.stop in marks or (summit and row.metrics is not None):
            yield row


def _table(rows: list[Row]) -> list[str]:
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    name = row.checkpoint_id + (f" [{row.role}]" if row.role else "")
    phase = f"{row.phase}.{row.segment}"
    if row.metrics is None:
        return (str(row.stop), f"{phase} {name}", row.status, *("",) * 5, row.detail or "")
    metrics = row.metrics
    worst = ""
    if metrics.worst is not None and not metrics.byte_exact:
        worst = ",".join(f"{key}{value}" for key, value in metrics.worst.coordinate.items())
    return (
        str(row.stop),
        f"{phase} {name}",
        row.status,
        _number(metrics.max_abs),
        _number(metrics.relative_rmse),
        _number(row.gate.relative_rmse if row.gate else None),
        "" if metrics.cosine is None else f"{metrics.cosine:.7f}",
        f"{metrics.exact_ratio:.0%}",
        worst,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _tail(report: Report) -> Iterable[str]:
    held = sum(item.holds for item in report.conservation)
    yield f"conservation: {held}/{len(report.conservation)} sums hold"
    for item in [item for item in report.conservation if not item.holds][:5]:
        yield (
            f"  {item.side}: {item.check} is off by {item.error:.1e} at {item.checkpoint_id} "
            f"(limit {item.limit:.1e})"
        )
    for ranking in report.rankings:
        yield (
            f"top-1 {ranking.check} (segment {ranking.segment}): "
            f"{ranking.agreeing}/{ranking.positions} positions agree"
        )
