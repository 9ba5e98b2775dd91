"""The per-head heat map: one column per query head, one row per comparison and metric.

Colour is the decimal logarithm of the error, from pale (small) to dark red (large); heads of one
kv head stand together. A metric that does not exist is hatched. It is a picture, not a verdict.
"""

import math
from html import escape

from cke.schemas.attention_packet import Comparison, HeadMetrics

METRICS = (("L∞", "linf"), ("RMSE", "rmse"), ("relative L2", "relative_l2"))
LOWEST, HIGHEST = -9.0, 1.0
_STOPS = ((255, 251, 235), (253, 211, 105), (240, 126, 60), (196, 42, 54), (92, 10, 46))
_CELL_HEIGHT, _GROUP_GAP, _LEFT, _TOP, _TITLE, _LEGEND = 22, 6, 92, 44, 24, 52


def draw_heat_map(comparisons: list[tuple[str, Comparison]]) -> str:
    """One self-contained SVG element; hovering a cell shows its value."""
    heads = comparisons[0][1].per_head
    width = max(7, min(34, 720 // len(heads)))
    across = _left(heads[-1], width) + width
    total = max(across + 16, 560)
    block = _TITLE + _CELL_HEIGHT * len(METRICS) + 14
    height = _TOP + block * len(comparisons) + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">',
        "<title>Error per query head</title>",
        '<defs><pattern id="undefined" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="#667" stroke-width="1.5"/></pattern></defs>',
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>',
        *_axis(heads, width),
    ]
    for index, (label, comparison) in enumerate(comparisons):
        parts += _block(label, comparison, width, _TOP + index * block)
    parts += [*_legend(height - _LEGEND + 14), "</svg>"]
    return "\n".join(parts)


def _left(head: HeadMetrics, width: int) -> int:
    return _LEFT + head.query_head * width + head.kv_head * _GROUP_GAP


def _axis(heads: tuple[HeadMetrics, ...], width: int) -> list[str]:
    parts = [_text(_LEFT - 8, 18, "kv head", "end"), _text(_LEFT - 8, 38, "query head", "end")]
    step = max(1, math.ceil(22 / width))
    for head in heads:
        middle = _left(head, width) + width / 2
        if head.query_head % step == 0:
            parts.append(_text(middle, 38, str(head.query_head), "middle"))
    for kv_head in sorted({head.kv_head for head in heads}):
        group = [head for head in heads if head.kv_head == kv_head]
        first, last = _left(group[0], width), _left(group[-1], width) + width - 1
        if last - first >= 14:
            parts.append(_text((first + last) / 2, 18, str(kv_head), "middle"))
        parts.append(f'<path d="M{first} 24H{last}" stroke="#99a" stroke-width="1"/>')
    return parts


def _block(label: str, comparison: Comparison, width: int, top: int) -> list[str]:
    parts = [f'<text x="8" y="{top + 17}" font-weight="600" fill="#223">{escape(label)}</text>']
    for row, (name, field) in enumerate(METRICS):
        y = top + _TITLE + row * _CELL_HEIGHT
        parts.append(_text(_LEFT - 8, y + 15, name, "end"))
        for head in comparison.per_head:
            value = getattr(head, field)
            text = head.undefined_reason if value is None else f"{value:.3e}"
            fill = "url(#undefined)" if value is None else color(value)
            parts.append(
                f'<rect x="{_left(head, width)}" y="{y}" width="{width - 1}" '
                f'height="{_CELL_HEIGHT - 1}" fill="{fill}"><title>head {head.query_head} '
                f"(kv {head.kv_head}), {name}: {escape(text or '')}</title></rect>"
            )
    return parts


def _legend(top: int) -> list[str]:
    steps = 60
    parts = [_text(_LEFT - 8, top + 11, "error", "end")]
    for index in range(steps):
        value = 10 ** (LOWEST + (HIGHEST - LOWEST) * index / (steps - 1))
        parts.append(
            f'<rect x="{_LEFT + index * 5}" y="{top}" width="5.2" height="14" '
            f'fill="{color(value)}"/>'
        )
    for exponent in range(int(LOWEST), int(HIGHEST) + 1, 2):
        x = _LEFT + (exponent - LOWEST) / (HIGHEST - LOWEST) * steps * 5
        parts.append(_text(x, top + 30, f"1e{exponent}", "middle"))
    parts.append(
        f'<rect x="{_LEFT + 336}" y="{top}" width="18" height="14" fill="url(#undefined)"/>'
    )
    parts.append(_text(_LEFT + 360, top + 11, "does not exist", "start"))
    return parts


def color(value: float) -> str:
    """The colour of an error; zero is white."""
    if value <= 0:
        return "#ffffff"
    place = (math.log10(value) - LOWEST) / (HIGHEST - LOWEST)
    scaled = max(0.0, min(1.0, place)) * (len(_STOPS) - 1)
    index = min(int(scaled), len(_STOPS) - 2)
    share = scaled - index
    mixed = (
        round(a + (b - a) * share) for a, b in zip(_STOPS[index], _STOPS[index + 1], strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#445">{escape(text)}</text>'
