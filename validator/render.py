"""The scoreboard as Markdown, JUnit and one picture; all of them from the JSON alone."""

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from cke.schemas.validator_selftest import Outcome, Score, Selftest
from cke.validator.scoreboard import is_right

COLUMNS = (
    "injected",
    "edge_exact",
    "class_right",
    "owner_right",
    "confirmed",
    "declined",
    "missed",
    "wrong",
    "controls",
    "false_positives",
    "failed",
)
COLOURS = {
    "exact": "#2e7d32",
    "edge off": "#9e9d24",
    "declined": "#f9a825",
    "missed": "#6a1b9a",
    "wrong": "#c62828",
    "failed": "#424242",
    "flagged": "#ad1457",
    "quiet": "#90a4ae",
}
"""What an outcome is in the picture, and its colour."""


def markdown(body: Selftest) -> str:
    """Return the scoreboard as Markdown: the score, its parts, and every miss with its reasons."""
    lines = [f"# X-Ray self-test: {body.status}", "", f"{body.mode}, seed {body.seed}.", ""]
    lines += [*(f"- {reason}" for reason in body.reasons), ""] if body.reasons else []
    lines += _table("", {"all": body.score})
    for name, scores in body.by.items():
        lines += [f"## By {name}", "", *_table(name, scores)]
    lines += ["## Not as expected", ""]
    missed = [item for item in body.outcomes if not is_right(item)]
    lines += [line for item in missed for line in _miss(item)] or ["Nothing.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(name: str, scores: dict[str, Score]) -> list[str]:
    heads = [name, *(column.replace("_", " ") for column in COLUMNS)]
    rows = [[key, *(str(getattr(score, c)) for c in COLUMNS)] for key, score in scores.items()]
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def kind_of(item: Outcome) -> str:
    """Return the one word for an outcome that the picture colours."""
    if item.failed is not None:
        return "failed"
    if item.kind != "fault":
        return "flagged" if item.false_positive else "quiet"
    for name in ("wrong", "missed", "declined"):
        if getattr(item, name):
            return name
    return "exact" if item.edge_exact else "edge off"


def _miss(item: Outcome) -> Iterator[str]:
    expected, found = item.expected, item.found
    yield f"### {item.id}: {kind_of(item)}"
    yield ""
    yield f"- stands for {item.stands_for}; {item.place}"
    yield (
        f"- expected {expected.failure_class} of {expected.fix_owner} at {expected.checkpoint_id}"
        if item.kind == "fault"
        else "- expected no finding"
    )
    if found is not None:
        yield (
            f"- got {found.failure_class} of {found.fix_owner} at {found.checkpoint_id} "
            f"({found.status}, {found.verdict})"
        )
        yield from (f"- because {reason}" for reason in found.because)
        if found.next_probe is not None:
            yield f"- asks {found.next_probe}"
    if item.failed is not None:
        yield f"- no report: {item.failed}"
    yield ""


def junit(body: Selftest, seconds: dict[str, float]) -> str:
    """Return the outcomes as JUnit XML: one test case each, in one suite for each oracle."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>']
    wrong = sum(not is_right(item) for item in body.outcomes)
    lines.append(
        f'<testsuites name="cke validate" tests="{len(body.outcomes)}" failures="{wrong}">'
    )
    for oracle in sorted({item.oracle for item in body.outcomes}):
        items = [item for item in body.outcomes if item.oracle == oracle]
        bad = sum(not is_right(item) for item in items)
        name = quoteattr(f"validator.{oracle}")
        lines.append(f'  <testsuite name={name} tests="{len(items)}" failures="{bad}">')
        lines += [line for item in items for line in _case(item, seconds.get(item.id, 0.0))]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _case(item: Outcome, seconds: float) -> Iterator[str]:
    head = f'    <testcase classname="validator" name={quoteattr(item.id)} time="{seconds:.2f}"'
    if is_right(item):
        yield f"{head}/>"
        return
    yield f"{head}>"
    text = escape("\n".join(_miss(item)))
    yield f"      <failure message={quoteattr(kind_of(item))}>{text}</failure>"
    yield "    </testcase>"


def picture(body: Selftest) -> str:
    """Return an SVG: a bar for each class, owner, family and oracle, coloured by outcome."""
    bars: list[tuple[str, list[Outcome]]] = []
    for name in ("class", "owner", "family", "oracle"):
        bars.append((f"by {name}", []))
        for key in body.by[name]:
            bars.append((key, [item for item in body.outcomes if _key(name, item) == key]))
    most = max((len(items) for _, items in bars), default=1) or 1
    unit = 560 / most
    height = 70 + 20 * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="920" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16">X-Ray self-test: {body.status} — {_headline(body)}'
        "</text>",
    ]
    for place, (name, colour) in enumerate(COLOURS.items()):
        x = 12 + 112 * place
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="46">{name}</text>')
    for row, (label, items) in enumerate(bars):
        parts += _bar(68 + 20 * row, label, items, unit)
    return "\n".join([*parts, "</svg>", ""])


def _key(name: str, item: Outcome) -> str:
    from cke.validator.scoreboard import GROUPS

    return GROUPS[name](item)


def _headline(body: Selftest) -> str:
    score = body.score
    return (
        f"{score.injected} injected, {score.edge_exact} edges exact, {score.class_right} classes, "
        f"{score.owner_right} owners, {score.declined} declined, {score.wrong} wrong; "
        f"{score.false_positives} of {score.controls} controls flagged"
    )


def _bar(y: int, label: str, items: list[Outcome], unit: float) -> Iterator[str]:
    weight = "" if items else ' font-weight="bold"'
    yield f'<text x="12" y="{y + 11}"{weight}>{escape(label)}</text>'
    x = 300.0
    for kind, colour in COLOURS.items():
        found = sum(kind_of(item) == kind for item in items)
        if found:
            width = unit * found
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="14" fill="{colour}">'
                f"<title>{escape(label)}: {found} {kind}</title></rect>"
            )
            x += width
    if items:
        yield f'<text x="{x + 6:.1f}" y="{y + 11}">{len(items)}</text>'
