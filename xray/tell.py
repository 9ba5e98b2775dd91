"""A diagnosis on one screen: what diverged first, by how much, why, who owns it, what to do.

Everything is read from the report; nothing is computed that it does not state. At most 30 lines
of 100 columns.
"""

import shlex
import textwrap
from collections.abc import Iterable

from cke.schemas.diagnosis import Counterfactual, Diagnosis, Divergence, Replay
from cke.schemas.numerical_report import Metrics
from cke.xray.changes import with_origin
from cke.xray.packets import told

WIDTH = 100
LINES = 30
LABEL = 10
UNITS = {
    "binding": "rounds",
    "schedule": "forwards",
    "metadata": "tensors",
    "weights": "weights",
    "numbers": "edges",
    "behaviour": "positions",
}
NAMES = {"pytorch": "PyTorch", "llamacpp": "llama.cpp", "reference": "the float64 reference"}


def human(report: Diagnosis) -> str:
    """Return the report as one screen of text."""
    lines = [line for paragraph in _paragraphs(report) for line in [*paragraph, ""]][:-1]
    return "\n".join(_fitted(lines))


def _fitted(lines: list[str]) -> list[str]:
    """Return the lines, without the empty ones between paragraphs when they are too many."""
    if len(lines) <= LINES:
        return lines
    full = [line for line in lines if line]
    return full if len(full) <= LINES else [*full[: LINES - 1], "… report.md has the rest"]


def _paragraphs(report: Diagnosis) -> Iterable[list[str]]:
    found = report.first_divergence
    yield _wrapped("", headline(report))
    if found is not None:
        yield [*_what(report, found), *_why(found)]
        yield _do(report, found)
    yield [*_checked(report), *_again(report)]


def headline(report: Diagnosis) -> str:
    """Return the result in one or two sentences, the banner word for word."""
    found = report.first_divergence
    other = oracle_name(report)
    if found is None and report.status == "complete":
        return f"{report.banner}\nNothing diverges from {other}."
    if found is None:
        return (
            f"{report.banner}\nNothing was compared with {other}: the evidence is {report.status}."
        )
    where = place(found)
    if report.status == "stopped":
        return (
            f"{where} cannot be compared with {other}.\n"
            "Stopped before any number was compared: there is no verdict."
        )
    if report.status == "rejected":
        return f"{where} is no evidence.\nThe captures were rejected: there is no verdict."
    if found.failure_class == "RANKING_DIVERGENCE" and found.fix_owner is None:
        return (
            f"The first token is not {other}'s, with every edge inside its budget; "
            f"its cause is open.\n{_state(report)}"
        )
    open_cause = "" if found.fix_owner is not None else "; its cause is open"
    return f"{where} is the first edge that differs from {other}{open_cause}.\n{_state(report)}"


def _state(report: Diagnosis) -> str:
    verdict = "" if report.verdict is None else f" — {report.verdict}"
    flip = ""
    if report.first_flip is not None:
        segment, row, position = report.first_flip
        flip = f"\nThe first token flips at row {row}, position {position} of forward {segment}."
    return f"{report.banner}{verdict}{flip}"


def oracle_name(report: Diagnosis) -> str:
    """Return the oracle as a person calls it."""
    name = str(report.oracle.get("producer", "the oracle"))
    return NAMES.get(name, name)


def place(found: Divergence) -> str:
    """Return the edge of a finding, or its stage when it is about the whole run."""
    if found.checkpoint_id is None:
        return f"the {found.stage} of the run"
    return found.checkpoint_id + (f" [{found.role}]" if found.role else "")


def _what(report: Diagnosis, found: Divergence) -> Iterable[str]:
    parts = []
    if found.failure_class is not None:
        yield from _wrapped("class", found.failure_class)
    if found.op is not None:
        kernel = f", kernel `{found.kernel_id}`" if found.kernel_id else ""
        parts.append(f"`{found.op}` ({found.operator}{kernel})")
    if found.source is not None:
        parts.append(f"at {source_path(report)}")
    if found.phase is not None:
        parts.append(f"in forward {found.segment} ({found.phase})")
    if parts:
        yield from _wrapped("what", " ".join(parts))
    if found.metrics is not None:
        yield from _wrapped("by", amount(found))
    if found.last_passing_checkpoint is not None:
        yield from _wrapped("before", f"{found.last_passing_checkpoint} is the last that agrees")


def source_path(report: Diagnosis) -> str:
    """Return the circuit line of the finding as a path that an editor opens."""
    found = report.first_divergence
    if found is None or found.source is None:
        return ""
    folder = str(report.scope.get("circuit_folder") or "")
    inside = found.source.startswith("circuits/") or not folder
    return found.source if inside else f"{folder}/{found.source}"


def amount(found: Divergence) -> str:
    """Return how far the edge is off, against its budget, and where most."""
    metrics, gate = found.metrics, found.gate
    assert metrics is not None, "an amount needs metrics"
    text = error_text(metrics)
    if gate is not None:
        text += f" against a budget of {gate.relative_rmse:.2g} ({gate.rule})"
        if metrics.relative_rmse is not None and gate.relative_rmse:
            times = metrics.relative_rmse / gate.relative_rmse
            text += f", {times:,.0f} times it" if times >= 2 else ""
    if metrics.worst is not None and not metrics.byte_exact:
        at = " ".join(f"{axis}{index}" for axis, index in metrics.worst.coordinate.items())
        text += (
            f"; worst at {at}: {_value(metrics.worst.subject)}, "
            f"oracle {_value(metrics.worst.oracle)}"
        )
    return text


def error_text(metrics: Metrics) -> str:
    """Return the error in words; elements that are not finite are counted, not measured."""
    if metrics.mismatched_nonfinite:
        return f"{metrics.mismatched_nonfinite} elements are not finite on one side only"
    if metrics.relative_rmse is None:
        return metrics.undefined.get("relative_rmse", "an error that has no number")
    return f"relative RMSE {metrics.relative_rmse:.3g}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _why(found: Divergence) -> Iterable[str]:
    if found.replay is not None:
        yield from _wrapped(
            "why", f"replayed on the oracle's own inputs ({_inputs(found.replay)}):"
        )
        for left, metrics, good in replay_rows(found.replay):
            mark = "agrees" if good else "DIFFERS"
            yield f"{'':{LABEL}}  {left:<34} {mark:<8} {error_text(metrics)}"
    elif found.because:
        yield from _wrapped("why", "\n".join(found.because))
    change = found.confirmed_by
    if change is not None:
        yield from _wrapped("proof", proof(found, change))
    elif found.also_closing:
        shown = "; ".join(with_origin(item) for item in found.also_closing[:3])
        yield from _wrapped(
            "open", f"{len(found.also_closing)} of {found.tried} changes close the gap: {shown}"
        )
    elif found.tried:
        yield from _wrapped("open", f"none of {found.tried} single changes closes the gap")


def _inputs(replay: Replay) -> str:
    shown = ", ".join(replay.inputs[:3])
    return shown if len(replay.inputs) <= 3 else f"{shown}, {len(replay.inputs) - 3} more"


def replay_rows(replay: Replay) -> Iterable[tuple[str, Metrics, bool]]:
    """Yield the three comparisons of a replay, each with whether it is within the budget."""
    limit = replay.gate.relative_rmse
    for name, metrics in (
        ("kernel / float64 definition", replay.kernel_against_reference),
        ("float64 definition / oracle", replay.reference_against_oracle),
        ("kernel / oracle", replay.kernel_against_oracle),
        ("running program / its kernels", replay.compiled_against_kernel),
    ):
        if metrics is not None:
            error = metrics.relative_rmse
            good = not metrics.mismatched_nonfinite and (error is None or error <= limit)
            yield name, metrics, good


def proof(found: Divergence, change: Counterfactual) -> str:
    """Return the confirmed change in words, with what it does to the error."""
    count = f"of {found.tried} single changes replayed, one" if found.tried > 1 else "one change"
    return (
        f"{count} closes the gap: {with_origin(change)} — "
        f"relative RMSE {change.before:.3g} becomes {change.after:.3g}"
    )


def _do(report: Diagnosis, found: Divergence) -> list[str]:
    lines: list[str] = []
    if found.fix_owner is not None:
        where = report.architecture_policy.get("where")
        lines += _wrapped("owner", f"{found.fix_owner}" + (f" — {where}" if where else ""))
    if found.recommended_action is not None:
        lines += _wrapped("do", found.recommended_action)
    if found.confirmed_by is not None and found.confirmed_by.patch is not None:
        lines += [f"{'':{LABEL}}  {line}" for line in _cropped(patch_lines(found))]
    if report.next_probe is not None:
        lines += _wrapped("question", report.next_probe.question)
        lines += command_lines("probe", report.next_probe.command)
    if report.packet_export is not None:
        lines += command_lines("packet", report.packet_export)
    return lines


def patch_lines(found: Divergence) -> list[str]:
    """Return the changed lines of the patch, without their context."""
    change = found.confirmed_by
    if change is None or change.patch is None:
        return []
    lines = change.patch.splitlines()
    return [f"{line[0]} {line[1:].strip()}" for line in lines[2:] if line[:1] in ("-", "+")]


def _cropped(lines: list[str]) -> Iterable[str]:
    """Yield lines that fit, each cut so that what differs between them is seen."""
    room = WIDTH - LABEL - 2
    columns = zip(*(line[2:] for line in lines), strict=False)
    differs = next((place for place, chars in enumerate(columns) if len(set(chars)) > 1), 0)
    start = max(0, differs - room // 2) if max(map(len, lines), default=0) > room else 0
    for line in lines:
        text = line[2:] if not start else "…" + line[2 + start :]
        shown = f"{line[:2]}{text}"
        yield shown if len(shown) <= room else shown[: room - 1] + "…"


def _checked(report: Diagnosis) -> Iterable[str]:
    good = [
        f"{stage.name} ({stage.checked} {UNITS[stage.name]})"
        for stage in report.stages
        if stage.state == "passed"
    ]
    missing = [s.name for s in report.stages if s.state in ("not_reached", "not_available")]
    text = "good: " + ", ".join(good) if good else "nothing passed yet"
    rest = f"; not reached or not at hand: {', '.join(missing)}" if missing else ""
    yield from _wrapped("checked", text + rest)
    yield from _wrapped("scope", scope_text(report))
    yield from _wrapped("coverage", coverage_text(report))
    if report.second_report is not None:
        second = report.second_report
        yield from _wrapped(
            "second",
            f"{second.get('oracle')} says {second.get('verdict')}, "
            f"report {str(second.get('sha256'))[:12]}",
        )
    if report.packet is not None:
        yield from _wrapped("packet", told(report.packet).removeprefix("packet "))
    for line in report.fix_progression:
        if line.startswith("since "):
            yield from _wrapped("since", line.removeprefix("since "))


def scope_text(report: Diagnosis) -> str:
    """Return what was run on what: family, backend with its version, and the sample."""
    scope, other = report.scope, report.oracle
    family = report.subject.get("family")
    version = other.get("version")
    parts = [
        f"circuit {scope.get('circuit')}" + (f" (family {family})" if family else ""),
        f"{oracle_name(report)}{f' {version}' if version else ''} in {other.get('dtype')}",
        f"{scope.get('rows')} x {scope.get('tokens')} prompt tokens"
        if scope.get("rows") == 1
        else f"{scope.get('rows')} rows, {scope.get('tokens')} prompt tokens",
        f"{scope.get('decode_steps')} decode steps",
    ]
    return ", ".join(parts)


def coverage_text(report: Diagnosis) -> str:
    """Return coverage in the seed's words, and what was captured to get it."""
    item = report.coverage
    mine = sum(round_.subject_tensors for round_ in report.rounds)
    theirs = sum(round_.oracle_tensors for round_ in report.rounds)
    rounds = len(report.rounds)
    return (
        f"{item.ops_with_edges}/{item.ops_total} ops have X-ray edges, {item.edges_compared} of "
        f"{item.edges_total} graph edges; {mine} + {theirs} tensors in {rounds} "
        f"round{'' if rounds == 1 else 's'}"
    )


def _again(report: Diagnosis) -> list[str]:
    return command_lines("again", report.reproduce)


def command_lines(label: str, command: str) -> list[str]:
    """Return a command on lines that fit, to be pasted as it is."""
    room = WIDTH - LABEL - 4
    lines: list[str] = [""]
    for item in _flags(shlex.split(command)):
        if lines[-1] and len(lines[-1]) + 1 + len(item) > room:
            lines[-1] += " \\"
            lines.append("   " + item)
        else:
            lines[-1] = f"{lines[-1]} {item}".strip() if len(lines) == 1 else f"{lines[-1]} {item}"
    return [f"{label if i == 0 else '':<{LABEL}}{line}" for i, line in enumerate(lines)]


def _flags(words: list[str]) -> Iterable[str]:
    """Yield each flag with its value, quoted, so that no line ends between them."""
    kept = ""
    for word in map(shlex.quote, words):
        if kept and not word.startswith("--"):
            yield f"{kept} {word}"
            kept = ""
            continue
        if kept:
            yield kept
        kept = word if word.startswith("--") else ""
        if not kept:
            yield word
    if kept:
        yield kept


def _wrapped(label: str, text: str) -> list[str]:
    lines: list[str] = []
    indent = LABEL if label or text == "" else 0
    for part in text.split("\n"):
        lines += textwrap.wrap(
            part, WIDTH - indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return [f"{label if i == 0 else '':<{indent}}{line}" for i, line in enumerate(lines)]
