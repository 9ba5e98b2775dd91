"""A diagnosis as a Markdown page: what the screen says, and the tables behind it."""

from collections.abc import Iterable

from cke.schemas.diagnosis import Diagnosis, Divergence, Point
from cke.xray.packets import told
from cke.xray.tell import (
    amount,
    coverage_text,
    error_text,
    headline,
    proof,
    replay_rows,
    scope_text,
    source_path,
)

AROUND = 6


def markdown(report: Diagnosis, picture: str | None = None) -> str:
    """Return the page; `picture` is the path of the drift curve beside it."""
    first, *rest = headline(report).split("\n")
    found = report.first_divergence
    lines = [f"# X-Ray: {first.rstrip('.')}", "", *_lines(rest)]
    if found is not None:
        lines += [*_facts(report, found), *_replay(found), *_change(found), *_action(report, found)]
    lines += [*_stages(report), *_further(report)]
    if picture is not None and report.points:
        lines += ["## Drift", "", f"![drift curve]({picture})", ""]
    if found is not None:
        lines += _around(report, found)
    return "\n".join([*lines, *_command("Again", report.reproduce)]).rstrip() + "\n"


def _lines(lines: list[str]) -> Iterable[str]:
    for line in lines:
        yield from (line, "")


def _facts(report: Diagnosis, found: Divergence) -> Iterable[str]:
    rows = [
        ("class", found.failure_class and f"`{found.failure_class}` (stage {found.stage})"),
        ("edge", found.checkpoint_id and f"`{found.checkpoint_id}`"),
        ("op", found.op and f"`{found.op}`, operator `{found.operator}`"),
        ("kernel", found.kernel_id and f"`{found.kernel_id}`"),
        ("circuit line", found.source and f"`{source_path(report)}`"),
        ("forward", found.phase and f"{found.segment} ({found.phase})"),
        ("off by", amount(found) if found.metrics is not None else None),
        (
            "last that agrees",
            found.last_passing_checkpoint and f"`{found.last_passing_checkpoint}`",
        ),
        ("owner", found.fix_owner and f"**{found.fix_owner}**"),
        ("where it is fixed", report.architecture_policy.get("where")),
    ]
    yield from ("| | |", "|---|---|")
    yield from (f"| {name} | {_cell(str(text))} |" for name, text in rows if text)
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _replay(found: Divergence) -> Iterable[str]:
    yield from ("## Why", "")
    yield from (f"- {reason}" for reason in found.because)
    yield ""
    if found.replay is None:
        return
    inputs = ", ".join(f"`{name}`" for name in found.replay.inputs)
    yield from (f"Replayed on the oracle's own inputs ({inputs}):", "")
    yield from ("| comparison | error | within the budget |", "|---|---|---|")
    for name, metrics, good in replay_rows(found.replay):
        yield f"| {name} | {error_text(metrics)} | {'yes' if good else '**no**'} |"
    gate = found.replay.gate
    yield from ("", f"The budget of the replay is {gate.relative_rmse:.2g} ({gate.rule}).", "")


def _change(found: Divergence) -> Iterable[str]:
    change = found.confirmed_by
    if change is not None:
        yield from (f"{_capital(proof(found, change))}.", "")
        if change.patch is not None:
            yield from ("```diff", change.patch.rstrip("\n"), "```", "")
    elif found.tried:
        yield from (f"{found.tried} single changes were replayed.", "")
    if found.also_closing:
        yield from ("These close the gap, and tell different stories:", "")
        yield from (
            "| op | change | from | to | origin | error after |",
            "|---|---|---|---|---|---|",
        )
        for item in found.also_closing:
            cells = (item.op, f"{item.kind} {item.what}", item.old, item.new, item.origin)
            yield f"| {' | '.join(_cell(str(cell)) for cell in cells)} | {item.after:.3g} |"
        yield ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _action(report: Diagnosis, found: Divergence) -> Iterable[str]:
    yield from ("## What to do", "")
    if found.recommended_action is not None:
        yield from (f"{_capital(found.recommended_action)}.", "")
    if report.next_probe is not None:
        yield from (f"Open question: {report.next_probe.question}.", "")
        yield from _command("Probe", report.next_probe.command)
    if report.packet_export is not None:
        yield from _command("A packet of this attention", report.packet_export)
    for index, step in enumerate(report.fix_progression, 1):
        yield f"{index}. {step}"
    yield ""


def _stages(report: Diagnosis) -> Iterable[str]:
    yield from ("## What was checked", "")
    yield from ("| stage | state | checked | what |", "|---|---|---|---|")
    for stage in report.stages:
        state = stage.state.replace("_", " ")
        shown = f"**{state}**" if stage.state == "broken" else state
        yield f"| {stage.name} | {shown} | {stage.checked or ''} | {_cell(stage.detail)} |"
    yield ""


def _further(report: Diagnosis) -> Iterable[str]:
    yield f"- Scope: {scope_text(report)}"
    yield f"- Coverage: {coverage_text(report)}"
    if report.points:
        yield f"- Byte-exact prefix: {report.byte_exact_prefix} of {len(report.points)} stops"
    for item in report.rankings:
        yield (
            f"- First token, {item.check.replace('_', ' ')}, forward {item.segment}: "
            f"{item.agreeing} of {item.positions} positions agree"
        )
    if report.second_report is not None:
        second = report.second_report
        yield (
            f"- Second oracle: {second.get('oracle')} says {second.get('verdict')}, report "
            f"`{second.get('sha256')}`"
        )
    if report.companions:
        files = ", ".join(f"`{item.file}` (`{item.schema}`)" for item in report.companions)
        yield f"- Beside this report: {files}"
    if report.packet is not None:
        yield f"- Attention {told(report.packet)}"
        yield from (f"  - {limitation}" for limitation in report.packet.limitations)
    for number, asked in enumerate(report.rounds, 1):
        yield (
            f"- Round {number}: {asked.purpose}; {asked.subject_tensors} tensors of the subject, "
            f"{asked.oracle_tensors} of the oracle"
        )
    yield ""


def _around(report: Diagnosis, found: Divergence) -> Iterable[str]:
    at = next(
        (
            point.stop
            for point in report.points
            if (point.checkpoint_id, point.segment) == (found.checkpoint_id, found.segment)
        ),
        None,
    )
    if at is None:
        return
    yield from ("## Around the first divergence", "")
    yield "Here both sides run on their own values, so that errors before it count in."
    yield ""
    yield from ("| stop | checkpoint | status | relative RMSE | budget |", "|---|---|---|---|---|")
    for point in report.points[max(0, at - AROUND) : at + AROUND + 1]:
        mark = "**" if point.stop == at else ""
        yield (
            f"| {point.stop} | {mark}`{_shown(point)}`{mark} | {point.status} | "
            f"{_number(point.relative_rmse)} | {_number(point.budget)} |"
        )
    yield ""


def _shown(point: Point) -> str:
    return point.checkpoint_id + (f" [{point.role}]" if point.role else "")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _command(title: str, command: str) -> list[str]:
    return [f"{title}:", "", "```sh", command, "```", ""]
