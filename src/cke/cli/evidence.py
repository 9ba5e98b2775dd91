"""`cke trace` and `cke trace diff`: evidence of a model, and the comparison of two sides."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from cke.cli.output import Format, Output, choose, deliver, encode_json
from cke.errors import CkeError, Diagnostic, Note
from cke.schemas.trace import Level

trace_app = App(help="Capture what a model computes, or compare two captures.")


def parse_rows(tokens: str) -> tuple[tuple[int, ...], ...]:
    """Return rows of token IDs: `1 2 3` is one row, `1 2 3; 4 5` are two; else CKE701."""
    try:
        rows = tuple(tuple(int(item) for item in row.split()) for row in tokens.split(";"))
    except ValueError:
        rows = ()
    if not rows or not all(rows):
        raise CkeError(
            Diagnostic(
                code="CKE701",
                message=f"`--tokens` expects IDs such as `1 2 3`, got `{tokens}`",
                notes=(Note("separate the rows of a batch with `;`", label="help"),),
            )
        )
    return rows


def one_input(tokens: str, prompt: str, pixels: Path | None) -> None:
    """Refuse more or less than one of what a model can be given."""
    if sum(map(bool, (tokens, prompt, pixels))) != 1:
        message = "expected one of `--tokens`, `--prompt` and `--pixels`"
        raise CkeError(Diagnostic(code="CKE701", message=message))


def prompt_tokens(model: Path, tokens: str, prompt: str) -> str:
    """Return the token IDs of `--tokens`, or of `--prompt` by the model's own tokenizer."""
    if bool(tokens) == bool(prompt):
        raise CkeError(
            Diagnostic(code="CKE701", message="expected `--tokens` or `--prompt`, and not both")
        )
    if tokens:
        return tokens
    from cke.runtime.tokenizer import load_tokenizer
    from cke.runtime.weights.files import open_model

    return " ".join(map(str, load_tokenizer(open_model(model)).encode(prompt)))


def request_of(
    tokens: str,
    steps: str = "",
    segments: str = "",
    edges: str = "",
    layers: str = "",
    capture: str = "tensor",
) -> Any:
    """Return the capture request of the command line's texts."""
    from cke.runtime.schedule import CaptureRequest

    levels: dict[str, Level] = {"summary": "summary", "tensor": "tensor"}
    if capture not in levels:
        message = f"`--capture` expects summary or tensor, got `{capture}`"
        raise CkeError(Diagnostic(code="CKE701", message=message))
    return CaptureRequest(
        tokens=parse_rows(tokens),
        forced=parse_rows(steps) if steps.strip() else (),
        segments=parse_rows(segments)[0] if segments.strip() else (),
        edges=frozenset(edges.replace(",", " ").split()) or None,
        layers=frozenset(parse_rows(layers)[0]) if layers.strip() else None,
        level=levels[capture],
    )


def with_pixels(request: Any, manifest: Any, pixels: Path) -> Any:
    """Return the request with the images of a file in place of tokens."""
    import msgspec

    from cke.api.requests import pixels_request

    given = pixels_request(manifest, pixels)
    return msgspec.structs.replace(request, tokens=given.tokens, pixels=given.pixels)


@trace_app.default
def trace(
    *,
    model: Path,
    out: Path,
    tokens: str = "",
    prompt: str = "",
    pixels: Path | None = None,
    circuit: str | None = None,
    dtype: str = "float32",
    steps: str = "",
    segments: str = "",
    edges: str = "",
    layers: str = "",
    capture: str = "tensor",
) -> int:
    """Capture what a model computes, with proof that looking changed nothing, as a trace folder.

    Parameters
    ----------
    model: the model folder or .gguf file.
    out: the trace folder to write.
    tokens: the prompt's token IDs; rows of a batch are separated by `;`.
    prompt: the prompt as text, in place of token IDs.
    pixels: for an encoder of images, a .npy file of what its image processor returns.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    dtype: float32 or bfloat16.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    edges: what to capture, all by default: names of checkpoints without their layer, ids such as
        `layer.3.layer_output`, and ranges of stops in the order of execution such as `10:20`.
    layers: numbers of the layers to capture; all by default.
    capture: tensor keeps all values; summary keeps minimum, maximum, mean, norm, counts of NaN and
        infinite elements, and a hash.
    """
    import cke.api
    from cke.api.evidence import subject_trace

    one_input(tokens, prompt, pixels)
    if prompt:
        tokens = prompt_tokens(model, tokens, prompt)
    loaded = cke.api.load(model, circuit, dtype)
    request = request_of(tokens or "0", steps, segments, edges, layers, capture)
    if pixels is not None:
        request = with_pixels(request, loaded.manifest, pixels)
    written = subject_trace(loaded, request, out)
    body = written.body
    gate = body.neutrality
    print(f"{len(body.records)} captures in {out}: {gate.status}")
    if gate.finding is not None:
        shown = ", ".join(gate.differing[:3])
        sys.stderr.write(f"{gate.finding}: {len(gate.differing)} outputs differ, such as {shown}\n")
    return 0 if gate.status in ("neutral", "isolated") else 4


@trace_app.command(name="diff")
def diff(
    subject: Path,
    oracle: Path,
    *,
    format: Format = "human",
    output: Output = None,
    svg: Annotated[Path | None, Parameter(help="Draw the drift curve to this file.")] = None,
) -> int:
    """Compare two traces checkpoint by checkpoint, in graph order."""
    from cke.errors.files import write_atomically
    from cke.runtime.trace_reader import read_trace
    from cke.xray.diff import diff_traces
    from cke.xray.render import human, markdown

    renderers: dict[str, Any] = {
        "human": lambda: human(report),
        "markdown": lambda: markdown(report),
        "json": lambda: encode_json(document(report)),
    }
    choose(format, renderers)
    report: Any = diff_traces(read_trace(subject), read_trace(oracle), _progress)
    if svg is not None:
        from cke.viewer.drift import draw_drift

        write_atomically(svg, draw_drift(report).encode())
    deliver(format, output, renderers)
    if report.status == "incomplete":
        return 4
    return 0 if report.verdict == "pass_within_gate" else 1


def document(report: Any) -> Any:
    """Return the report in its envelope, with the hash of its body."""
    from cke.schemas.numerical_report import SCHEMA, VERSION, Document
    from cke.schemas.reading import canonical_sha256

    return Document(
        schema=SCHEMA, version=VERSION, body=report, body_sha256=canonical_sha256(report)
    )


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 50 == 0 or done == total):
        sys.stderr.write(f"\r{done}/{total} checkpoints compared")
        sys.stderr.write("\n" if done == total else "")
        sys.stderr.flush()
