"""`cke probe`: the inputs that a circuit's own structure asks for, run and kept as a packet."""

from collections import Counter
from pathlib import Path
from typing import Any

from cke.cli.output import Format, Output, choose, deliver, encode_json


def probe(
    *,
    model: Path,
    out: Path,
    circuit: str | None = None,
    dtypes: str = "float32 bfloat16",
    oracle: str | None = None,
    max_tokens: int = 128,
    format: Format = "human",
    output: Output = None,
) -> int:
    """Derive the input matrix of a model's circuit, run it, and say which cells were covered.

    Parameters
    ----------
    model: the model folder or .gguf file.
    out: the packet folder to write: probe.json and a trace for each run.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    dtypes: the run dtypes, separated by spaces.
    oracle: compare each run with pytorch or llamacpp.
    max_tokens: the longest row; a window that is longer is reported as not covered.
    """
    from cke.api.probe import probe_model

    renderers: dict[str, Any] = {
        "human": lambda: _human(packet),
        "json": lambda: encode_json(packet),
    }
    choose(format, renderers)
    packet: Any = probe_model(
        model,
        out,
        circuit=circuit,
        dtypes=tuple(dtypes.replace(",", " ").split()),
        oracle=oracle,
        max_tokens=max_tokens,
    )
    deliver(format, output, renderers)
    if any(run.neutrality not in ("neutral", "isolated") for run in packet.runs):
        return 4
    return 1 if any(run.verdict not in (None, "pass_within_gate") for run in packet.runs) else 0


def _human(packet: Any) -> str:
    covered = sum(cell.run is not None for cell in packet.cells)
    lines = [
        f"{packet.circuit}: {covered}/{len(packet.cells)} cells covered by {len(packet.runs)} runs",
        f"windows: {_listed(packet.windows)}; positions beyond: {_listed(packet.boundaries)}",
        "layers: " + ", ".join(f"{kind} {_listed(items)}" for kind, items in packet.layers.items()),
    ]
    if packet.experts:
        seen = (f"{name} {found}/{total}" for name, (found, total) in packet.experts.items())
        lines.append("experts chosen: " + ", ".join(seen))
    reasons = Counter(cell.reason for cell in packet.cells if cell.run is None)
    lines += [f"not run: {count} cells, {reason}" for reason, count in reasons.items()]
    for run in packet.runs:
        verdict = "" if run.verdict is None else f", {run.verdict}"
        over = "" if run.first_over_gate is None else f" from {run.first_over_gate}"
        lines.append(f"  {run.name}: {run.records} captures, {run.neutrality}{verdict}{over}")
    return "\n".join(lines)


def _listed(items: Any) -> str:
    return " ".join(map(str, items)) or "none"
