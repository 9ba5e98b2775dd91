"""The one-pager: what was measured, on what, and what was not; Markdown, and HTML with plots.

Every number of the report is printed in full. What the laws oblige the page to show is listed by
`owed`, which the receipt holds against the text.
"""

import html
from typing import Any

import msgspec

from cke.fidelity.bootstrap import interval
from cke.fidelity.checks.disclosure import TAIL
from cke.fidelity.checks.evidence import Document, Evidence, field
from cke.fidelity.checks.measurement import repeat_spread
from cke.fidelity.checks.stack import NOT_MEASURED
from cke.fidelity.fields import KEY, key_of
from cke.fidelity.laws import laws
from cke.fidelity.profiles import profiles
from cke.fidelity.receipt import Receipt, deviations
from cke.fidelity.redact import redact_text

UNMEASURED = (
    "free-running generation",
    "benchmark results",
    "instruction following",
    "long context beyond the suite",
    "multimodal behaviour",
    "tool use",
    "throughput",
)
LETTERS = "The first letter is the source of the expert IDs, not a precision of experts or routers."
CANCELS = "The substitution reaches both cells: in QxQ - BxQ it cancels in part, never exactly."


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page: a heading, a paragraph, a table, or a table that HTML also plots."""

    kind: str
    text: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    plot: bool = False


def owed(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Return what the page must show: line of the laws, what it is, and the text."""
    report = evidence.report
    found = [("0.7", f"that {name} is not measured", name) for name in (NOT_MEASURED, *UNMEASURED)]
    found.append(("0.9", "the laws' status", f"status: {laws().status}"))
    found.append(("4.4", "`kld_vocab_size`", f"kld_vocab_size | {report.get('kld_vocab_size')}"))
    for name in TAIL:
        value = report.get(name)
        if name != "depth_buckets":
            found.append(("9.2", f"`{name}`", f"{name} | {value!r}"))
        for item in value if isinstance(value, list) else ():
            row = f"{item.get('depth_lo')}-{item.get('depth_hi')} | {item.get('n')}"
            found.append(("9.2", "the profile by depth", row))
    agreement = field(report, "trunk_worker_agreement.max_abs_delta")
    found.append(("8.6", "how far workers diverged", f"max_abs_delta | {agreement!r}"))
    strata = report.get("strata")
    for item in strata if isinstance(strata, list) else ():
        found.append(("15.1", f"`{item.get('stratum')}`", f"| {item.get('stratum')} |"))
    found.append(("10.7", "the commit", f"commit | {field(evidence.environment, 'commit')} |"))
    profile = profiles().get(str(field(evidence.environment, "stack_profile")))
    for name, reason in profile.absent.items() if profile else ():
        found.append(("6.12", f"that `{name}` is absent", f"{name}: absent: {reason}"))
    if isinstance(evidence.routing, dict):
        found.append(("14.4", "what QxQ and BxQ mean", LETTERS))
        if report.get("quantization_substitutions"):
            found.append(("17.11", "that a substitution does not cancel", CANCELS))
        if field(evidence.routing, "natural_divergence.state") == "saturated":
            case = field(evidence.routing, "natural_divergence.saturated")
            found.append(("14.18", "saturation", f"Routing is saturated, {case}"))
    for item in report.get("quantization_substitutions") or ():
        found.append(("17.9", "a substitution", f"| {item.get('parameter')} |"))
    return found


def blocks_of(evidence: Evidence, receipt: Receipt) -> list[Block]:
    """Return the page as blocks."""
    report = evidence.report
    return [
        *_opening(evidence, receipt),
        *_noted([*_statistics(evidence), *_profiles(report), *_routing(evidence)], receipt),
        *_substitutions(report),
        *_stack(evidence),
        *_laws(receipt),
        Block(kind="heading", text=NOT_MEASURED.removeprefix("## ")),
        Block(
            kind="text",
            text="This page is evidence about one property. It does not measure "
            + ", ".join(UNMEASURED)
            + ". It is no verdict on a model.",
        ),
    ]


def _noted(blocks: list[Block], receipt: Receipt) -> list[Block]:
    """The blocks with what stands beside every number, in the row of each."""
    note = marks(receipt)
    if not note:
        return blocks
    return [
        msgspec.structs.replace(
            block, rows=tuple((*row[:-1], row[-1] + note) for row in block.rows), plot=False
        )
        if block.kind == "table"
        else block
        for block in blocks
    ]


def marks(receipt: Receipt) -> str:
    """Return what stands beside every mean of the campaign: deviations, and the floor."""
    parts = [
        f"Law {number} overridden by {entry.get('approver')} ({entry.get('timestamp')}): "
        f"{entry.get('justification')}"
        for number, entry in sorted(deviations(list(receipt.findings)).items())
    ]
    if receipt.nondeterminism_floor:
        parts.append(f"above a repeat floor of {receipt.nondeterminism_floor!r}")
    return f" [{'; '.join(parts)}]" if parts else ""


def _opening(evidence: Evidence, receipt: Receipt) -> list[Block]:
    report = evidence.report
    mean, note = report.get("mean_kld"), marks(receipt)
    state = (
        "compliant"
        if receipt.compliant
        else (f"not compliant: laws {', '.join(map(str, receipt.failed_laws))}")
    )
    lines = [
        f"KL(reference to candidate), teacher-forced, over {report.get('num_positions')} positions "
        f"of suite {report.get('suite_id')}, partition {report.get('partition')}.",
        f"mean_kld = {mean!r}{note}",
        f"Laws version {report.get('laws_version')}, status: {laws().status}; {state}.",
    ]
    if 1 in receipt.overridden_laws:
        spread, _ = repeat_spread(evidence.repeat_study)
        baseline = (evidence.self_report or {}).get("mean_kld")
        lines.append(
            f"The zero baseline is {baseline!r}; captures of the reference differ by up "
            f"to {spread!r}. A difference no larger than that is not a result."
        )
    title = Block(kind="title", text=f"Distribution fidelity: {report.get('student_model')}")
    return [title, *(Block(kind="text", text=line) for line in lines)]


def _statistics(evidence: Evidence) -> list[Block]:
    report = evidence.report
    names = (
        "mean_kld_reverse",
        *(n for n in TAIL if n != "depth_buckets"),
        "trunk_mean_kld",
        "deployed_mean_kld",
        "head_delta_kld",
        "kld_vocab_size",
        "num_positions",
    )
    rows = [(name, repr(report.get(name))) for name in names]
    agreement = report.get("trunk_worker_agreement")
    for name in ("workers", "max_abs_delta", "mean_rel_delta", "top1_flips"):
        if isinstance(agreement, dict) and name in agreement:
            rows.append((name, repr(agreement[name])))
    records = report.get("per_context")
    if isinstance(records, list) and records:
        low, high = interval(records)
        rows.append(("95 % interval of the mean, by source cluster", f"{low:.6g} to {high:.6g}"))
    return [
        Block(kind="heading", text="Statistics"),
        Block(kind="table", header=("what", "value"), rows=tuple(rows)),
    ]


def _profiles(report: Document) -> list[Block]:
    depth = tuple(
        (f"{b.get('depth_lo')}-{b.get('depth_hi')}", str(b.get("n")), repr(b.get("mean_kld")))
        for b in report.get("depth_buckets") or ()
    )
    confidence = tuple(
        (f"{b['low']:g}-{b['high']:g}", str(b["n"]), repr(b["mean_kld"]))
        for b in report.get("confidence_buckets") or ()
    )
    shares = field(report, "tail.share_of_mean")
    tail = (
        tuple((f"top {float(part):.2%}", repr(share)) for part, share in shares.items())
        if isinstance(shares, dict)
        else ()
    )
    return [
        Block(kind="heading", text="By depth"),
        Block(kind="table", header=("positions", "n", "mean_kld"), rows=depth, plot=True),
        Block(kind="heading", text="By the reference's certainty"),
        Block(
            kind="table", header=("top-1 probability", "n", "mean_kld"), rows=confidence, plot=True
        ),
        Block(kind="heading", text="Where the sum lies"),
        Block(kind="table", header=("largest positions", "share of the sum"), rows=tail, plot=True),
        Block(kind="heading", text="By domain"),
        Block(kind="table", header=STRATA_HEADER, rows=_strata(report.get("strata")), plot=True),
    ]


STRATA_HEADER = (
    "stratum",
    "contexts",
    "mean_kld",
    "median of contexts",
    "p90 of contexts",
    "worst context",
    "reference top-1",
    "reading",
)


def _strata(table: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            str(item["stratum"]),
            str(item["contexts"]),
            repr(item["mean_kld"]),
            f"{item['median_context_mean']:.6g}",
            f"{item['p90_context_mean']:.6g}",
            str(item["worst_context"]),
            f"{item['mean_ref_top1_prob']:.4f}",
            ("driven by outlier contexts; " if item["outlier_driven"] else "")
            + f"the reference was {item['reference_was']}",
        )
        for item in table or ()
    )


def _routing(evidence: Evidence) -> list[Block]:
    routing = evidence.routing
    if not isinstance(routing, dict):
        return []
    found = [
        Block(kind="heading", text="Routing: QxQ and BxQ"),
        Block(kind="text", text=LETTERS),
        Block(
            kind="table",
            header=("cell", "state", "mean_kld"),
            rows=tuple(
                (name, str(field(routing, f"{key}.state")), repr(field(routing, f"{key}.mean_kld")))
                for name, key in (("QxQ", "qxq_cell"), ("BxQ", "bxq_cell"))
            ),
        ),
        Block(
            kind="text",
            text="routing_intervention_delta = "
            f"{routing.get('routing_intervention_delta')!r}, a paired intervention: QxQ minus "
            "BxQ, which may have either sign.",
        ),
    ]
    natural = routing.get("natural_divergence")
    if isinstance(natural, dict):
        rows = tuple(
            (name, repr(value))
            for name, value in natural.items()
            if not isinstance(value, list) or name == "per_layer_flip_rate"
        )
        found.append(Block(kind="table", header=("natural routing", "value"), rows=rows))
        if natural.get("state") == "saturated":
            text = f"Routing is saturated, {natural.get('saturated')}: the mean is unranked."
            found.append(Block(kind="text", text=text))
    if evidence.report.get("quantization_substitutions"):
        found.append(Block(kind="text", text=CANCELS))
    return found


def _substitutions(report: Document) -> list[Block]:
    listed = report.get("quantization_substitutions")
    if not listed:
        return []
    rows = tuple(
        (
            str(e.get("parameter")),
            str(e.get("replacement")),
            f"{e.get('affected_layers')} of {e.get('scored_layers')}",
            repr(e.get("worst_spread")),
        )
        for e in listed
    )
    return [
        Block(kind="heading", text="Substituted parameters"),
        Block(
            kind="text",
            text="The kernels did not use these as exported; the result ranks only "
            "against others with the same substitution.",
        ),
        Block(
            kind="table", header=("parameter", "replaced by", "layers", "worst spread"), rows=rows
        ),
    ]


def _stack(evidence: Evidence) -> list[Block]:
    key = key_of(evidence.report)
    rows = [(name, str(key[name])) for name in KEY]
    rows.append(("commit", str(field(evidence.environment, "commit"))))
    found = [
        Block(kind="heading", text="Key and stack"),
        Block(kind="table", header=("field", "value"), rows=tuple(rows)),
    ]
    profile = profiles().get(str(field(evidence.environment, "stack_profile")))
    if profile is not None:
        found += [
            Block(kind="text", text=f"{name}: absent: {reason}")
            for name, reason in profile.absent.items()
        ]
    return found


def _laws(receipt: Receipt) -> list[Block]:
    rows = tuple(
        (str(f.law), f.title, f.status, "; ".join(f.detail)) for f in receipt.findings if f.law
    )
    return [
        Block(kind="heading", text="Laws"),
        Block(kind="table", header=("law", "title", "status", "detail"), rows=rows),
    ]


def markdown(blocks: list[Block]) -> str:
    """Return the page as Markdown, without a credential."""
    out: list[str] = []
    for block in blocks:
        match block.kind:
            case "title":
                out += [f"# {block.text}", ""]
            case "heading":
                out += [f"## {block.text}", ""]
            case "text":
                out += [block.text, ""]
            case _:
                out += [f"| {' | '.join(block.header)} |", "|" + "---|" * len(block.header)]
                out += [f"| {' | '.join(row)} |" for row in block.rows]
                out.append("")
    return redact_text("\n".join(out))


def html_page(blocks: list[Block]) -> str:
    """Return the page as one HTML file with its plots, without a credential."""
    body: list[str] = []
    for block in blocks:
        text = html.escape(block.text)
        match block.kind:
            case "title":
                body.append(f"<h1>{text}</h1>")
            case "heading":
                body.append(f"<h2>{text}</h2>")
            case "text":
                body.append(f"<p>{text}</p>")
            case _:
                body += [_plot(block)] if block.plot else []
                body.append(_table(block))
    style = (
        "body{font:15px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;margin:.5rem 0}td,th{border:1px solid #ccc;"
        "padding:.2rem .5rem;text-align:left;vertical-align:top;word-break:break-word}"
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{style}</style>'
        f"<title>Distribution fidelity</title>{''.join(body)}</html>\n"
    )
    return redact_text(page)


def _table(block: Block) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in block.rows
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _plot(block: Block) -> str:
    """Bars of the column that holds the means or shares."""
    column = block.header.index("mean_kld") if "mean_kld" in block.header else 1
    values = [(row[0], _float(row[column])) for row in block.rows]
    top = max((value for _, value in values), default=0.0)
    if top <= 0:
        return ""
    bars = "".join(
        f'<text x="0" y="{index * 22 + 15}">{html.escape(name)}</text>'
        f'<rect x="190" y="{index * 22 + 3}" width="{400 * value / top:.1f}" height="16" '
        f'fill="#47a"><title>{value:.6g}</title></rect>'
        for index, (name, value) in enumerate(values)
    )
    return f'<svg width="600" height="{22 * len(values)}" font-size="13">{bars}</svg>'


def _float(text: str) -> float:
    return 0.0 if text == "None" else float(text)
