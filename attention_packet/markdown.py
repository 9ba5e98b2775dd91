"""A report as text and as Markdown with a heat map; rendered from the report alone."""

from collections.abc import Iterator

import msgspec

from cke.attention_packet.heat_map import draw_heat_map
from cke.schemas.attention_packet import Analysis, Comparison, HeadMetrics, Metrics, MirrorCheck

Row = tuple[str, ...]
HEADER: Row = ("head", "kv head", "L∞", "RMSE", "relative L2", "undefined")


def render_text(analysis: Analysis) -> str:
    """Status, identity, geometry, non-finite counts and the per-head table, as plain text."""
    lines = [f"attention packet: {analysis.status}", *_reasons(analysis)]
    for title, rows in _facts(analysis):
        lines += ["", title, *_aligned(rows)]
    for title, comparison in comparisons(analysis):
        lines += ["", title, *_aligned([HEADER, *_table(comparison)])]
    lines += ["", "limitations", *(f"  - {text}" for text in analysis.limitations)]
    return "\n".join(lines)


def render_markdown(analysis: Analysis) -> str:
    """The same as Markdown, with the per-head heat map drawn as SVG."""
    lines = ["# Attention packet", "", f"Status: **{analysis.status}**", ""]
    lines += [f"- {reason}" for reason in _reasons(analysis)]
    shown = comparisons(analysis)
    if shown:
        lines += ["", "## Error per head", "", draw_heat_map(shown)]
    for title, rows in _facts(analysis):
        lines += ["", f"## {title.capitalize()}", "", *_pipes([("", ""), *rows])]
    for title, comparison in shown:
        lines += ["", f"## {title}", "", *_pipes([HEADER, *_table(comparison)])]
    lines += ["", "## Limitations", "", *(f"- {text}" for text in analysis.limitations)]
    return "\n".join(lines) + "\n"


def comparisons(analysis: Analysis) -> list[tuple[str, Comparison]]:
    """Every comparison of the captured output, by its label; the primary comes first."""
    found: list[tuple[str, Comparison]] = []
    for part in (
        analysis.original_query_reference,
        analysis.reference_rounded_to_output_dtype,
        analysis.narrowed_query_counterfactual,
    ):
        if part:
            found.append((part.label, part.comparison))
    if analysis.additions and analysis.additions.float64_comparison:
        part64 = analysis.additions.float64_comparison
        found.append((part64.label, part64.output_difference))
    return found


def _reasons(analysis: Analysis) -> list[str]:
    lines = [f"inconclusive: {reason}" for reason in analysis.inconclusive_reasons]
    if analysis.refusal:
        lines.append(f"refused: {analysis.refusal.message}")
    if analysis.interpretation:
        lines.append(analysis.interpretation)
    return lines


def _facts(analysis: Analysis) -> Iterator[tuple[str, list[Row]]]:
    if analysis.identity:
        yield "identity", _fields(analysis.identity) + _hashes(analysis)
    if analysis.selection:
        yield "selection", _fields(analysis.selection)
    if analysis.geometry:
        yield "geometry", [row for row in _fields(analysis.geometry) if row[0] != "dtypes"]
        yield "dtypes", [(name, dtype) for name, dtype in analysis.geometry.dtypes.items()]
    if analysis.tensor_nonfinite:
        yield (
            "not finite",
            [
                (
                    name,
                    f"{count.nan} NaN",
                    f"{count.positive_infinity} +Inf, {count.negative_infinity} -Inf",
                )
                for name, count in analysis.tensor_nonfinite.items()
            ],
        )
    if analysis.last_row_consistency:
        yield (
            "stored last row against the incoming row",
            [
                (
                    name,
                    "{mismatchedNativeElements} of {comparedNativeElements} elements differ".format(
                        **row
                    ),
                )
                for name, row in msgspec.to_builtins(analysis.last_row_consistency).items()
            ],
        )
    if analysis.additions and analysis.additions.incoming_mirror:
        yield "incoming-KV mirror", _mirror(analysis.additions.incoming_mirror)


def _mirror(check: MirrorCheck) -> list[Row]:
    rows: list[Row] = [("tokens", f"[{check.token_start}, {check.token_end})")]
    for name, part in (("storedKeys", check.stored_keys), ("storedValues", check.stored_values)):
        text = (
            f"{part.mismatched_native_elements} of {part.compared_native_elements} elements differ"
        )
        if part.first_mismatched_token is not None:
            text += f", first at token {part.first_mismatched_token}"
        rows.append((name, text))
    return rows


def _hashes(analysis: Analysis) -> list[Row]:
    return [
        ("packetSHA256", str(analysis.packet_sha256)),
        ("metadataSHA256", str(analysis.metadata_sha256)),
    ]


def _fields(part: msgspec.Struct) -> list[Row]:
    return [(name, str(value)) for name, value in msgspec.to_builtins(part).items()]


def _table(comparison: Comparison) -> list[Row]:
    return [_row("all", "", comparison.global_), *map(_head, comparison.per_head)]


def _head(metrics: HeadMetrics) -> Row:
    return _row(str(metrics.query_head), str(metrics.kv_head), metrics)


def _row(head: str, kv_head: str, metrics: Metrics) -> Row:
    values = (metrics.linf, metrics.rmse, metrics.relative_l2)
    return (head, kv_head, *map(number, values), metrics.undefined_reason or "")


def number(value: float | None) -> str:
    """Three significant digits; a metric that does not exist is a dash."""
    return "-" if value is None else f"{value:.2e}"


def _aligned(rows: list[Row]) -> list[str]:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]


def _pipes(rows: list[Row]) -> list[str]:
    columns = max(map(len, rows))
    lines = [
        "| " + " | ".join(_cell(cell) for cell in (*row, *[""] * (columns - len(row)))) + " |"
        for row in rows
    ]
    return [lines[0], "|" + "---|" * columns, *lines[1:]]


def _cell(text: str) -> str:
    plain = " ".join(text.split())
    for character in "\\|<>`*_[]":
        plain = plain.replace(character, f"&#{ord(character)};")
    return plain
