"""`cke packet`: analyse one attention packet, export one from a model, show one.

The exit codes of `analyze` are the packet format's own: 0 when the selection is supported, 2 when
it is not or the packet is refused. No code depends on the size of an error.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cke.cli.output import Format, Output, deliver, progress

app = App(name="packet", help="Analyse, export and show attention packets.")

NewReport = Annotated[
    Path, Parameter(name=("--output", "-o"), help="The report; it must not exist yet.")
]
Mirror = Annotated[
    Path | None, Parameter(help="mirror.json of an independently captured incoming-KV mirror.")
]


@app.command
def analyze(packet_json: Path, /, *, output: NewReport, mirror: Mirror = None) -> int:
    """Compare the captured output with an independent FP32 reference; write the report.

    Parameters
    ----------
    packet_json
        The packet's `packet.json`.
    """
    from cke.attention_packet.__main__ import analyze_to_file

    return analyze_to_file(packet_json, output, mirror)


@app.command
def export(
    *,
    model: Path,
    layer: int,
    out: Path,
    tokens: str = "",
    prompt: str = "",
    step: int = 0,
    forced: str = "",
    dtype: str = "float32",
    circuit: str | None = None,
    mirror: Path | None = None,
) -> int:
    """Run a model and write the packet of one decode step of one layer.

    Parameters
    ----------
    model
        The model folder or .gguf file.
    layer
        The layer, from 0; it must be causal and without a window.
    out
        The new folder of the packet; run evidence goes to `<out>-run.json`.
    tokens
        The prompt's token IDs, such as `1 2 3`.
    prompt
        The prompt as text, in place of token IDs.
    step
        The decode step after the prompt, from 0.
    forced
        Tokens of the first decode steps, such as `5 9`; by default, and after them, the largest
        logit decides.
    dtype
        float32 or bfloat16.
    circuit
        A library circuit or a .circuit file; found from the model's config by default.
    mirror
        A new folder for an incoming-KV mirror of every forward.
    """
    from cke.api.packet import ExportRequest, export_attention_packet
    from cke.cli.evidence import parse_rows, prompt_tokens

    request = ExportRequest(
        tokens=parse_rows(prompt_tokens(model, tokens, prompt))[0],
        layer=layer,
        step=step,
        forced=parse_rows(forced)[0] if forced.strip() else (),
        circuit=circuit,
        dtype=dtype,
    )
    progress(f"running {model}")
    found = export_attention_packet(model, request, out, mirror)
    print(f"{found.status} {found.packet_sha256 or ''}".rstrip())
    return 0 if found.packet_sha256 is not None else 4


@app.command
def show(
    packet_json: Path, /, *, mirror: Mirror = None, format: Format = "human", output: Output = None
) -> int:
    """Show geometry, identity and the error of every head; Markdown draws a heat map.

    Parameters
    ----------
    packet_json
        The packet's `packet.json`.
    """
    from cke.attention_packet.analyze import analyze as analyze_packet
    from cke.attention_packet.markdown import render_markdown, render_text
    from cke.attention_packet.report import encode_report

    progress(f"analysing {packet_json}")
    outcome = analyze_packet(packet_json, mirror)
    renderers = {
        "human": lambda: render_text(outcome.analysis),
        "json": lambda: encode_report(outcome.analysis).decode(),
        "markdown": lambda: render_markdown(outcome.analysis),
    }
    deliver(format, output, renderers)
    return outcome.exit_code
