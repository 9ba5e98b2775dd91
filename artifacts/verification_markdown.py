"""The Markdown of a verification report, from the report alone."""

from cke.artifacts.markdown import plain
from cke.schemas.differential import Interval
from cke.schemas.verification_report import VerificationReport

NOTES = (
    "- Equal digests are no claim that tensors are equal.",
    "- A differing digest is no confirmed first divergence and names no cause.",
    "- Only what both sides captured was compared.",
)


def render_verification(report: VerificationReport) -> str:
    """Return the whole report as Markdown."""
    lines = [
        "# LIS Verification Report",
        "",
        f"- Verdict: **{report.verdict}** (exit code {report.exit_code})",
        f"- Reason: `{' '.join(map(plain, report.reason.split(' ')))}`",
        f"- Compared: {plain(report.reference)} (reference), {plain(report.candidate)} (candidate)",
        f"- Level: {report.level}; mode {report.mode}; submode {report.submode}",
        f"- Attempt: `{report.attempt_id}`",
        *_next(report),
        *_tokens(report),
        *_layers(report),
        *_stages(report),
        "",
        "## Stages of the attempt",
        "",
        "| stage | status |",
        "|---|---|",
        *(f"| {plain(item.name)} | {plain(item.status)} |" for item in report.stages),
        "",
        "## Notes",
        "",
        *NOTES,
    ]
    return "\n".join(lines) + "\n"


def _next(report: VerificationReport) -> list[str]:
    return [] if report.next_action is None else [f"- Next: {report.next_action}"]


def _tokens(report: VerificationReport) -> list[str]:
    found, preflight = report.token_localization, report.calibration
    if found is None:
        return []
    assert preflight is not None, "tokens are compared after the preflight"
    lines = ["", "## Tokens", "", f"- Preflight: {preflight.verdict}"]
    lines += [f"  - {item.code} ({item.severity})" for item in preflight.reasons]
    lines.append(f"- Status: {found.status}")
    if found.generated_index is not None:
        lines += [
            f"- First difference: generated token {found.generated_index} "
            f"(runtime step {found.runtime_checkpoint_step})",
            f"- Reference chose {_token(found.reference_token_id)}, "
            f"candidate {_token(found.candidate_token_id)}",
        ]
    if report.prefix_reproduction is not None:
        lines.append(f"- Reproduction: {report.prefix_reproduction.status}")
    return lines


def _token(token: int | None) -> str:
    return "nothing" if token is None else str(token)


def _layers(report: VerificationReport) -> list[str]:
    found = report.layer_localization
    if found is None:
        return []
    lines = ["", "## Layers", "", f"- Status: {found.status}", *_interval(found.interval)]
    if not found.comparisons:
        return lines
    lines += ["", "| layer output | digest |", "|---|---|"]
    return lines + [_row(item.coordinate, item.digest_equal) for item in found.comparisons]


def _stages(report: VerificationReport) -> list[str]:
    found = report.intra_layer_localization
    if found is None:
        return []
    lines = [
        "",
        f"## Stages of layer {found.target_layer}",
        "",
        f"- Status: {found.status}",
        *_interval(found.interval),
    ]
    if not found.comparisons:
        return lines
    lines += ["", "| stage | digest |", "|---|---|"]
    return lines + [_row(item.coordinate, item.digest_equal) for item in found.comparisons]


def _row(name: str, equal: bool) -> str:
    return f"| {plain(name)} | {'equal' if equal else 'differs'} |"


def _interval(interval: Interval | None) -> list[str]:
    if interval is None:
        return []
    lines = [f"- Interval: `{interval.notation}`"]
    if interval.unobserved:
        lines.append("- Unobserved in between: " + ", ".join(map(plain, interval.unobserved)))
    return lines
