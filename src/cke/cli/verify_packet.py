"""What `cke xray` goes on from after a regression: a trace of the reference, and the command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cke.api.execution import ModelEngine
    from cke.artifacts.verify import Findings

PACKET = "reference_trace"
"""The folder of an attempt that holds what the reference computes up to a mismatch."""


def forwards_of(prompt: Sequence[int], findings: "Findings") -> tuple[tuple[int, ...], ...]:
    """Return the prefill and each fed token of the run that reaches the mismatch.

    A prefix too long to be embedded is left out: the prompt alone is run.
    """
    tokens = findings.tokens
    prefix = None if tokens is None or tokens.prefix is None else tokens.prefix.token_ids
    fed = [(token,) for token in (*prompt[-1:], *(prefix or ()))]
    return (tuple(prompt[:-1]), *fed) if len(prompt) > 1 else tuple(fed)


def forced_rows(prompt: Sequence[int], findings: "Findings") -> tuple[str, str]:
    """Return the forwards as `--tokens` and `--steps` are written."""
    first, *steps = (" ".join(map(str, row)) for row in forwards_of(prompt, findings))
    return first, "; ".join(steps)


def keep_packet(
    reference: "ModelEngine",
    prompt: Sequence[int],
    findings: "Findings",
    out: Path,
) -> None:
    """Keep what the reference computes up to the mismatch as the trace that X-Ray goes on from."""
    from cke.api.evidence import subject_trace
    from cke.runtime.schedule import CaptureRequest

    first, *steps = forwards_of(prompt, findings)
    request = CaptureRequest(tokens=(first,), forced=tuple(steps))
    subject_trace(reference.model, request, out)


def xray_command(
    model: Path, circuit: str | None, dtype: str, oracle: str, folder: Path
) -> list[str]:
    """Return the words of the diagnosis that goes on from an attempt."""
    words = ["cke", "xray", "--model", str(model), "--oracle", oracle]
    words += [] if circuit is None else ["--circuit", circuit]
    words += [] if dtype == "float32" else ["--dtype", dtype]
    return [*words, "--out", str(folder / "xray")]
