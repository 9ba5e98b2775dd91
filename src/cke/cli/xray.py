"""`cke xray`: the first divergent edge of a model, its cause, its owner, and what to do."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from cke.cli.evidence import parse_rows, request_of
from cke.cli.output import Format, Output, Renderers, choose, deliver, encode_json, progress
from cke.errors import CkeError, Diagnostic, MissingInputError, Note

if TYPE_CHECKING:
    from cke.schemas.diagnosis import Diagnosis

app = App(name="xray", help="Find the first divergent edge of a model, its cause and its owner.")

FLAGS = (
    "subject",
    "model",
    "circuit",
    "oracle",
    "oracle_model",
    "second_report",
    "packet",
    "tokens",
    "prompt",
    "pixels",
    "steps",
    "segments",
    "dtype",
    "persistent",
    "out",
)
"""Flags of a diagnosis, in the order of the command that reproduces it."""

PATHS = ("subject", "model", "oracle_model", "second_report", "packet", "pixels", "out")
INPUTS = ("tokens", "prompt", "pixels")


@app.default
def xray(
    *,
    model: Path | None = None,
    subject: Path | None = None,
    oracle: str | None = None,
    out: Path | None = None,
    circuit: str | None = None,
    oracle_model: Path | None = None,
    second_report: Path | None = None,
    packet: Path | None = None,
    tokens: str = "",
    prompt: str = "",
    pixels: Path | None = None,
    steps: str = "",
    segments: str = "",
    dtype: str = "float32",
    persistent: bool = False,
    since: Path | None = None,
    replay: Path | None = None,
    format: Format = "human",
    output: Output = None,
) -> int:
    """Compare a model with one pinned oracle, and explain the first edge that differs.

    Writes report.json, report.md, drift.svg and, where one is proven, fix.patch. Exit code 0 says
    that everything is within its budget, 1 that there is a finding or drift, 4 that the evidence
    does not decide.

    Parameters
    ----------
    model: the model folder or .gguf file.
    subject: the folder of a trace, in place of a run. Without the model that was traced the traces
        alone are compared, and no op is replayed.
    oracle: pytorch, llamacpp, reference, or the folder of a trace.
    out: the folder to write the report and its captures to.
    circuit: a library circuit or a .circuit file; by default the family of the model's config.
    oracle_model: what the oracle loads, when it is not the subject's own files.
    second_report: the report.json of the same subject against another oracle.
    packet: the packet.json of an attention packet, written by the command of an earlier report.
    tokens: the prompt's token IDs; rows of a batch are separated by `;`.
    prompt: the prompt as text, in place of token IDs; without both, a packet made for the purpose.
    pixels: for an encoder of images, a .npy file of what its image processor returns.
    steps: forced tokens of the decode steps, as `ids of step 1; ids of step 2`.
    segments: end columns of the prefill forwards, for a chunked prefill.
    dtype: float32 or bfloat16.
    persistent: also compare the decode steps with a full replay of all that came before.
    format: human, json, markdown, github, junit, sarif, or for Google's Model Explorer its graphs
        (model-explorer) and the errors to load over them (model-explorer-data).
    since: the report.json of an earlier run: run it again, flags not given taken from it, and say
        whether the first divergence moved later, stayed or is gone.
    replay: a bundle: judge its op again, without the model.
    """
    given = {name: value for name, value in locals().items() if name in FLAGS}
    if replay is not None:
        return _replayed(replay, format, output)
    choose(format, renderers(None))
    report = diagnosed(given) if since is None else _since(since, given)
    deliver(format, output, renderers(report))
    return exit_code(report)


@app.command(name="bundle")
def bundle(report_dir: Path, *, output: Annotated[Path, Parameter(name=("--output", "-o"))]) -> int:
    """Pack a report with the evidence of its finding, to be judged again without the model.

    Parameters
    ----------
    report_dir: the folder that `cke xray --out` wrote.
    output: the .zip file to write.
    """
    from cke.xray.bundle import pack

    pack(report_dir, output, read_report(report_dir / "report.json"))
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; judge it with")
    print(f"cke xray --replay {shlex.quote(str(output))}")
    return 0


def _replayed(path: Path, format: str, output: Output) -> int:
    """Judge a bundle again: 1 when the fault is there, 0 when none is, 4 when evidence lacks."""
    import tempfile

    from cke.xray.bundle_files import EVIDENCE
    from cke.xray.bundle_reader import unpack
    from cke.xray.rejudge import rejudge, told

    choose(format, {"human": str, "json": str})
    with tempfile.TemporaryDirectory(prefix="cke-bundle-") as name:
        folder = Path(name)
        index = unpack(path, folder)
        report = read_report(folder / "report.json")
        result = rejudge(folder / EVIDENCE, report, index.evidence)
    deliver(format, output, {"human": lambda: told(result), "json": lambda: encode_json(result)})
    if result.outcome == "missing":
        return 4
    clean = report.first_divergence is None
    return 1 if (result.outcome == "same") is not clean else 0


def read_report(path: Path) -> "Diagnosis":
    """Return a report; MissingInputError when there is none."""
    return _earlier(path)[0]


def _earlier(path: Path) -> "tuple[Diagnosis, str]":
    """Return a report with its sha256; MissingInputError when there is none."""
    from cke.api.diagnosis import read_second

    if not path.is_file():
        raise _missing(path, "report.json of an earlier run")
    return read_second(path)


def _since(path: Path, given: dict[str, Any]) -> "Diagnosis":
    """Run an earlier diagnosis again from where it ended; the report says what moved."""
    earlier = _earlier(path)
    given = {**given, **_from_command(earlier[0].reproduce, given)}
    return diagnosed(given, since=earlier)


def _from_command(command: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of an earlier command that were not given now."""
    words = shlex.split(command)[2:]
    found: dict[str, Any] = {}
    if "--persistent" in words:
        words.remove("--persistent")
        found["persistent"] = True
    for flag, value in zip(words[::2], words[1::2], strict=False):
        name = flag.removeprefix("--").replace("-", "_")
        if name in FLAGS and given.get(name) in (None, "", "float32"):
            found[name] = Path(value) if name in PATHS else value
    if any(given[name] for name in INPUTS):
        found = {name: value for name, value in found.items() if name not in INPUTS}
    return found


def diagnosed(given: dict[str, Any], since: "tuple[Diagnosis, str] | None" = None) -> "Diagnosis":
    """Run a diagnosis of the flags given and write its report."""
    check_flags(given)
    second = given["second_report"]
    earlier = None if second is None else _earlier(second)
    if given["model"] is None:
        from cke.api.recorded_subject import xray_trace

        keys = ("subject", "oracle", "out", "oracle_model")
        told = {key: given[key] for key in keys}
        return xray_trace(
            told.pop("subject"), **told, second=earlier, since=since, reproduce=command_of(given)
        )
    from cke.api import load
    from cke.api.diagnosis import xray as run

    progress(f"loading {given['model']}")
    model = load(given["model"], given["circuit"], given["dtype"])
    tokens = given["tokens"]
    if given["prompt"]:
        tokens = " ".join(map(str, model.tokenizer.encode(given["prompt"])))
    request = request_of(tokens or "0", given["steps"], given["segments"])
    return run(
        model,
        oracle=given["oracle"],
        out=given["out"],
        tokens=request.tokens if tokens else None,
        pixels=given["pixels"],
        circuit=given["circuit"],
        dtype=given["dtype"],
        forced=request.forced,
        segments=request.segments,
        oracle_model=given["oracle_model"],
        persistent=given["persistent"],
        since=since,
        second=earlier,
        packet=given["packet"],
        recorded=given["subject"],
        reproduce=command_of(given),
        say=progress,
    )


def check_flags(given: dict[str, Any]) -> None:
    """Refuse flags that are missing or contradict each other, before anything is loaded."""
    absent = [f"`--{name}`" for name in ("model", "oracle", "out") if given[name] is None]
    if given.get("subject") is not None and given["model"] is None:
        absent.remove("`--model`")
    if absent:
        raise _usage(f"expected {' and '.join(absent)}, got none")
    inputs = [f"`--{name}`" for name in ("tokens", "prompt", "pixels") if given[name]]
    if len(inputs) > 1:
        raise _usage(f"expected one of `--tokens`, `--prompt` and `--pixels`, got {len(inputs)}")
    if given.get("subject") is not None:
        _refuse_unheard(given)
    for name in ("tokens", "steps", "segments"):
        if given[name].strip():
            parse_rows(given[name])


IN_THE_TRACE = ("tokens", "prompt", "pixels", "steps", "segments")
OF_THE_MODEL = ("circuit", "packet", "dtype", "persistent")


def _refuse_unheard(given: dict[str, Any]) -> None:
    """Refuse flags that a recorded subject would leave unheard."""
    told = [name for name in IN_THE_TRACE if given.get(name)]
    if told:
        raise _usage(
            f"expected `--subject` or `--{told[0]}`, got both",
            "the trace holds the tokens and forwards that it was recorded with: leave the flag out",
        )
    told = [name for name in OF_THE_MODEL if given.get(name) not in (None, False, "float32")]
    if told and given["model"] is None:
        raise _usage(
            f"expected `--model` with `--{told[0]}`, got `--subject` alone",
            "give the model that was traced: without it two traces are compared, and no op runs",
        )


def _usage(message: str, help_: str = "`cke xray --help` lists what it takes") -> CkeError:
    note = Note(help_, label="help")
    return CkeError(Diagnostic(code="CKE901", message=message, notes=(note,)))


def _missing(path: Path, what: str) -> MissingInputError:
    return MissingInputError(
        Diagnostic(
            code="CKE731",
            file=str(path),
            message=f"expected the {what}, got no file",
            notes=(Note("check the path", label="help"),),
        )
    )


def command_of(given: dict[str, Any]) -> str:
    """Return the command that gives the same diagnosis."""
    words = ["cke", "xray"]
    for name in FLAGS:
        value = given.get(name)
        if value in (None, "", False) or (name, value) == ("dtype", "float32"):
            continue
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    return shlex.join(words)


def renderers(report: Any) -> Renderers:
    """Return what each format shows of a report."""

    def in_format(name: str) -> str:
        from cke.cli import xray_formats

        text: str = getattr(xray_formats, name)(report)
        return text

    def as_human() -> str:
        from cke.xray.tell import human

        return human(report)

    def as_json() -> str:
        from cke.api.report_files import document_of

        return encode_json(document_of(report))

    def as_markdown() -> str:
        from cke.xray.tell_markdown import markdown

        return markdown(report)

    def as_sarif() -> str:
        from cke.cli.xray_formats import sarif

        return encode_json(sarif(report))

    def explored(name: str) -> str:
        from cke.cli import xray_explorer

        return encode_json(getattr(xray_explorer, name)(report))

    return {
        "human": as_human,
        "json": as_json,
        "markdown": as_markdown,
        "github": lambda: in_format("github"),
        "junit": lambda: in_format("junit"),
        "sarif": as_sarif,
        "model-explorer": lambda: explored("graphs"),
        "model-explorer-data": lambda: explored("node_data"),
    }


def exit_code(report: "Diagnosis") -> int:
    """Return 0 for a pass, 1 for a finding or drift, 4 when the evidence does not decide."""
    if report.status in ("incomplete", "rejected"):
        return 4
    clean = report.verdict == "pass_within_gate" and report.first_divergence is None
    return 0 if clean else 1
