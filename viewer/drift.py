"""The drift curve of a report as one SVG: x is the stop, y is log10 of the error.

It draws what the report states: green byte-exact prefix, amber pin at the first non-exact stop,
purple triangles at jumps, magenta diamonds at monotonicity breaks, a red pin at the logits of the
first top-1 flip, a black pin at a diagnosis's finding, gray ticks for edges that were not compared.
An error of zero has no logarithm: the curve breaks there. A long report shows its residual stream
above the rest. It decides nothing.
"""

import math
from collections.abc import Callable, Iterable
from html import escape

import msgspec

from cke.schemas.diagnosis import Diagnosis
from cke.schemas.numerical_report import Curve, Report

WIDTH, HEIGHT = 960, 372
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 56, 52
COLOURS = {"max_abs": "#1f6feb", "rmse": "#0f766e"}
LEGEND = (
    ("— max_abs", COLOURS["max_abs"]),
    ("— rmse", COLOURS["rmse"]),
    ("▲ jump over 3x", "#8250df"),
    ("◆ falls back", "#bf3989"),
    ("● first non-exact", "#bf8700"),
)
EXACT = 1e-12
LONG = 400
"""Rows from which on single marks no longer stand apart."""


class Row(msgspec.Struct, frozen=True):
    """One stop of the picture; `errors` is None for an edge that was not compared."""

    stop: int
    checkpoint_id: str
    layer: int | None
    segment: int
    phase: str
    errors: dict[str, float | None] | None


class Drift(msgspec.Struct, frozen=True):
    """What a report states, as far as it is drawn; `finding` is the stop of its finding."""

    banner: str
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    first_non_exact: int | None
    first_flip: tuple[int, int, int] | None
    finding: int | None = None


def draw_drift(report: Report) -> str:
    """Return the SVG text of a numerical report's drift curve."""
    rows = tuple(
        Row(
            row.stop,
            row.checkpoint_id,
            row.layer,
            row.segment,
            row.phase,
            None if row.metrics is None else {m: getattr(row.metrics, m) for m in COLOURS},
        )
        for row in report.rows
    )
    return _draw(
        Drift(report.banner, rows, report.curves, report.first_non_exact, report.first_flip)
    )


def draw_diagnosis(report: Diagnosis) -> str:
    """Return the SVG text of a diagnosis's drift curve, with a pin at the finding."""
    found = report.first_divergence
    last = max((point.segment for point in report.points), default=0)
    decoding = last + 1 - int(report.scope.get("decode_steps") or 0)
    rows = tuple(
        Row(
            point.stop,
            point.checkpoint_id,
            _layer(point.checkpoint_id),
            point.segment,
            "prefill" if point.segment < decoding else "decode",
            {name: getattr(point, name) for name in COLOURS},
        )
        for point in report.points
    )
    at = None
    if found is not None:
        at = next(
            (
                point.stop
                for point in report.points
                if (point.checkpoint_id, point.role, point.segment)
                == (found.checkpoint_id, found.role, found.segment)
            ),
            None,
        )
    return _draw(
        Drift(report.banner, rows, report.curves, report.first_non_exact, report.first_flip, at)
    )


def _layer(checkpoint_id: str) -> int | None:
    return int(checkpoint_id.split(".", 2)[1]) if checkpoint_id.startswith("layer.") else None


def _draw(report: Drift) -> str:
    rows = report.rows
    stops = max(1, len(rows) - 1)
    values = [v for row in rows for name in COLOURS if (v := _value(row, name)) is not None]
    low = math.floor(math.log10(max(min(values, default=EXACT), EXACT)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=1.0))))

    def x(stop: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * stop / stops

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [*_frame(report, low, high, y), *_layers(rows, x), *_prefix(report, x)]
    for metric in COLOURS:
        parts += _curve(rows, metric, x, y, 0.35 if _is_long(report) else 1.0)
    if _is_long(report):
        stream = tuple(row for row in rows if row.checkpoint_id.endswith(".layer_output"))
        for metric in COLOURS:
            parts += _curve(stream, metric, x, y)
    parts += _marks(report, x, y)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="11" role="img">\n'
        f"<title>{escape(report.banner)}</title>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _is_long(report: Drift) -> bool:
    return len(report.rows) >= LONG


def _frame(report: Drift, low: int, high: int, y: Callable[[float], float]) -> Iterable[str]:
    yield f'<text x="{LEFT}" y="18" font-size="13" fill="#111">{escape(report.banner)}</text>'
    entries = [*LEGEND, *([("bold: residual stream", "#57606a")] if _is_long(report) else [])]
    legend = " ".join(
        f'<tspan dx="8" fill="{colour}">{escape(text)}</tspan>' for text, colour in entries
    )
    yield f'<text x="{LEFT - 8}" y="36">{legend}</text>'
    for exponent in range(low, high + 1):
        at = y(10.0**exponent)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>'
        yield (
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#57606a">'
            f"1e{exponent}</text>"
        )


def _layers(rows: tuple[Row, ...], x: Callable[[int], float]) -> Iterable[str]:
    """Shade every other layer, and say where each forward begins and each layer is."""
    runs: list[tuple[Row, int]] = []
    for row in rows:
        if not runs or (runs[-1][0].segment, runs[-1][0].layer) != (row.segment, row.layer):
            runs.append((row, row.stop))
    ends = [start for _, start in runs[1:]] + [len(rows) - 1]
    wide = len(rows) < 8 * LONG
    for index, ((row, start), end) in enumerate(zip(runs, ends, strict=True)):
        if index % 2:
            yield (
                f'<rect x="{x(start):.1f}" y="{TOP}" width="{x(end) - x(start):.1f}" '
                f'height="{HEIGHT - TOP - BOTTOM}" fill="#f6f8fa"/>'
            )
        if row.layer is not None and wide:
            yield _label((x(start) + x(end)) / 2, HEIGHT - BOTTOM + 14, str(row.layer), 9)
    yield from _forwards(rows, x)
    yield _label((LEFT + WIDTH) / 2, HEIGHT - 8, "stop in execution order, by forward and layer")


def _forwards(rows: tuple[Row, ...], x: Callable[[int], float]) -> Iterable[str]:
    starts: dict[int, Row] = {}
    for row in rows:
        starts.setdefault(row.segment, row)
    if len(starts) < 2:
        return
    for segment, row in starts.items():
        at = x(row.stop)
        yield (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM + 18}" '
            'stroke="#afb8c1"/>'
        )
        text = f"{row.phase} {segment}"
        yield _label(at + 4, HEIGHT - BOTTOM + 26, text, 9, "start")


def _label(at: float, top: float, text: str, size: int = 11, anchor: str = "middle") -> str:
    return (
        f'<text x="{at:.1f}" y="{top:g}" text-anchor="{anchor}" fill="#57606a" '
        f'font-size="{size}">{text}</text>'
    )


def _prefix(report: Drift, x: Callable[[int], float]) -> Iterable[str]:
    if report.first_non_exact is None and report.rows:
        end = report.rows[-1].stop
    else:
        end = report.first_non_exact or 0
    if end:
        yield (
            f'<rect x="{x(0):.1f}" y="{HEIGHT - BOTTOM - 4}" width="{x(end) - x(0):.1f}" '
            'height="4" fill="#2da44e"/>'
        )
    for row in report.rows:
        if row.errors is None:
            at = x(row.stop)
            yield (
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{HEIGHT - BOTTOM}" '
                f'y2="{HEIGHT - BOTTOM + 4}" stroke="#8b949e"/>'
            )


def _curve(
    rows: tuple[Row, ...],
    metric: str,
    x: Callable[[int], float],
    y: Callable[[float], float],
    opacity: float = 1.0,
) -> Iterable[str]:
    runs: list[list[str]] = [[]]
    before: Row | None = None
    for row in rows:
        value = _value(row, metric)
        if value is None or (before is not None and before.segment != row.segment):
            runs.append([])
        if value is not None:
            runs[-1].append(f"{x(row.stop):.1f},{y(value):.1f}")
        before = row
    for points in filter(None, runs):
        yield (
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[metric]}" '
            f'stroke-width="1.2" stroke-opacity="{opacity:g}" stroke-linecap="round"/>'
        )


def _marks(report: Drift, x: Callable[[int], float], y: Callable[[float], float]) -> Iterable[str]:
    by_stop = {row.stop: row for row in report.rows}
    shown = next((curve for curve in report.curves if curve.metric == "max_abs"), None)
    size = 1.5 if _is_long(report) else 4.0
    for stop in shown.jumps if shown else ():
        value = _value(by_stop[stop], "max_abs") or EXACT
        at, top = x(stop), y(value)
        yield (
            f'<path d="M{at:.1f} {top - 2 * size:.1f} l{size:g} {1.75 * size:g} h{-2 * size:g} z" '
            f'fill="#8250df">'
            f"<title>{escape(by_stop[stop].checkpoint_id)}</title></path>"
        )
    if not _is_long(report):
        for stop in shown.monotonicity_breaks if shown else ():
            value = _value(by_stop[stop], "max_abs") or EXACT
            yield (
                f'<path d="M{x(stop):.1f} {y(value) - 3:.1f} l3 3 l-3 3 l-3 -3 z" '
                f'fill="#bf3989"><title>{escape(by_stop[stop].checkpoint_id)}</title></path>'
            )
    if report.first_non_exact is not None:
        yield from _pin(by_stop[report.first_non_exact], "#bf8700", x, "first non-exact")
    if report.first_flip is not None:
        logits = [r for r in report.rows if r.checkpoint_id == "logits"]
        flipped = [r for r in logits if r.segment == report.first_flip[0]]
        for row in flipped[:1]:
            yield from _pin(row, "#cf222e", x, "first top-1 flip")
    if report.finding is not None:
        yield from _pin(by_stop[report.finding], "#111111", x, "first divergence", TOP + 16)


def _pin(
    row: Row, colour: str, x: Callable[[int], float], what: str, top: float = TOP
) -> Iterable[str]:
    at = x(row.stop)
    label = escape(f"{what}: {row.checkpoint_id}")
    anchor, gap = ("end", -6) if at > WIDTH * 0.6 else ("start", 6)
    yield (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top:g}" y2="{HEIGHT - BOTTOM}" '
        f'stroke="{colour}" stroke-dasharray="3 3"/>'
    )
    yield f'<circle cx="{at:.1f}" cy="{top:g}" r="4" fill="{colour}"/>'
    yield (
        f'<text x="{at + gap:.1f}" y="{top - 6:g}" text-anchor="{anchor}" fill="{colour}">'
        f"{label}</text>"
    )


def _value(row: Row, metric: str) -> float | None:
    """Return the error that is drawn; None where there is none, or it is zero."""
    return (row.errors or {}).get(metric) or None
