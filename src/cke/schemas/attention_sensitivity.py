"""The report `cke.xray_attention_sensitivity`: how much attention makes of the errors it is given.

One authoritative attention, the float64 definition, runs on the oracle's Q, K and V, then with the
subject's in place of one or all of them. It is a diagnostic, never a verdict.
"""

from cke.schemas.ir import Node, Value

SCHEMA = "cke.xray_attention_sensitivity"
VERSION = 1


class Ablation(Node, frozen=True):
    """The output with the subject's operands named, against that with the oracle's alone.

    Errors are relative RMSE, None where one side has no norm; `amplification` is the output's
    error over that of the operands, None when these are equal.
    """

    operands: str
    input_error: float | None
    output_error: float | None
    output_max_abs: float | None
    amplification: float | None


class AttentionRow(Node, frozen=True):
    """One attention of one forward: its ablations q, k, v and qkv.

    `authority_error` is the definition on the oracle's operands against the oracle's own output;
    `to_logits` is the error of the logits over that of this output, as both sides computed them.
    """

    checkpoint_id: str
    layer: int | None
    segment: int
    phase: str
    op: str
    authority_error: float | None
    ablations: tuple[Ablation, ...]
    to_logits: float | None


class Skipped(Node, frozen=True):
    """An attention that was not run, and why."""

    op: str
    segment: int
    reason: str


class SensitivityReport(Node, frozen=True):
    """Every attention whose operands both sides show."""

    subject: dict[str, Value]
    oracle: dict[str, Value]
    rows: tuple[AttentionRow, ...]
    skipped: tuple[Skipped, ...]


class Document(Node, frozen=True):
    """The file: `body_sha256` covers the canonical JSON of the body."""

    schema: str
    version: int
    body: SensitivityReport
    body_sha256: str
