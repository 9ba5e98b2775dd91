"""The verdict of an attempt, its exit code, and what to do next."""

import msgspec

from cke.artifacts.attempt import Attempt
from cke.artifacts.verify import Findings
from cke.schemas.differential import Mode, Submode
from cke.schemas.verification_report import Level, Outcome, VerificationReport

EXIT_CODES: dict[Outcome, int] = {
    "PASS": 0,
    "REGRESSION": 4,
    "INCONCLUSIVE": 3,
    "UNSUPPORTED": 0,
    "HARNESS_ERROR": 2,
}
STRICT_UNSUPPORTED = 6
"""The exit code of UNSUPPORTED where support is required."""

INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143}
OF_TOKENS: dict[str, Outcome] = {
    "token_equivalent_on_observed_range": "PASS",
    "first_mismatch_found": "REGRESSION",
    "unsupported_comparison": "UNSUPPORTED",
}
"""Verdicts by the status of Pass 1; every other status is inconclusive."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, in names that hold no path."""

    level: Level
    mode: Mode
    submode: Submode
    reference: str
    candidate: str
    require_supported: bool = False


def verdict_of(findings: Findings) -> Outcome:
    """Return the verdict; without a comparison of tokens the harness has failed."""
    if findings.tokens is None:
        return "HARNESS_ERROR"
    return OF_TOKENS.get(findings.tokens.status, "INCONCLUSIVE")


def exit_code(verdict: Outcome, require_supported: bool) -> int:
    """Return the exit code of a verdict."""
    if verdict == "UNSUPPORTED" and require_supported:
        return STRICT_UNSUPPORTED
    return EXIT_CODES[verdict]


def build_report(
    attempt: Attempt,
    setting: Setting,
    findings: Findings,
    verdict: Outcome | None = None,
    reason: str | None = None,
) -> VerificationReport:
    """Return the report of an attempt; `verdict` and `reason` are given when it was cut short.

    A token mismatch that was found by then stays a regression.
    """
    so_far = verdict_of(findings)
    found = so_far if so_far == "REGRESSION" else verdict or so_far
    return VerificationReport(
        attempt_id=attempt.id,
        level=setting.level,
        mode=setting.mode,
        submode=setting.submode,
        verdict=found,
        exit_code=exit_code(found, setting.require_supported),
        reason=(reason or _reason(findings))[:256],
        reference=setting.reference,
        candidate=setting.candidate,
        stages=attempt.stages,
        calibration=findings.calibration,
        token_localization=findings.tokens,
        prefix_reproduction=findings.reproduction,
        layer_localization=findings.layers,
        intra_layer_localization=findings.stages,
        next_action=next_action(verdict or found, findings, setting.level),
    )


def _reason(findings: Findings) -> str:
    if findings.stages is not None:
        return findings.stages.reason
    if findings.layers is not None:
        return findings.layers.status
    if findings.reproduction is not None:
        return findings.reproduction.status
    return "no run was compared" if findings.tokens is None else findings.tokens.status


def next_action(verdict: Outcome, findings: Findings, level: Level) -> str | None:
    """Return one sentence that says how to go on, None after PASS; the demo has no model."""
    if verdict == "PASS":
        return None
    if verdict == "HARNESS_ERROR":
        return "read the message, and run the comparison again"
    if verdict == "UNSUPPORTED":
        return "compare a model whose runs the artifacts describe"
    if verdict == "INCONCLUSIVE":
        return "make both runs comparable in what the preflight names, and run again"
    layers, stages = findings.layers, findings.stages
    where = "the token mismatch"
    if layers is not None and layers.target_layer is not None:
        where = f"layer {layers.target_layer}"
        if stages is not None and stages.interval is not None:
            where += f", {stages.interval.notation}"
        where += f", at step {layers.runtime_checkpoint_step}"
    how = (
        "as `cke xray` does for a model"
        if level == "demo"
        else "with the `cke xray` command that was printed"
    )
    return f"diagnose {where}, {how}"
