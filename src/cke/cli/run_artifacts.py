"""The artifact flags of `cke run`: what they ask for, what is refused, what is written.

Exit codes are those of the artifact format: 0, 1 when the run or an artifact failed, 2 for a
combination that is refused before inference.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Group, Parameter

from cke.cli.token_writer import Request, TokenWriter

if TYPE_CHECKING:
    from cke.api import Model
    from cke.artifacts.engine import Execution, RunRequest
    from cke.schemas.decode_trace import Decision
    from cke.schemas.execution_manifest import InputMode

GROUP = Group("Execution artifacts", sort_key=100)
MAX_PREFIX_TEXT = 4096


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True)
class ArtifactOptions:
    """The flags of execution artifacts."""

    report_json: Annotated[Path | None, Parameter(help="Write the run report, as JSON.")] = None
    report_md: Annotated[Path | None, Parameter(help="Write the run report, as Markdown.")] = None
    trace_json: Annotated[Path | None, Parameter(help="Write how each token was selected.")] = None
    layer_trace_json: Annotated[
        Path | None, Parameter(help="Write the summaries of the captured step.")
    ] = None
    layer_checkpoints: Annotated[
        int | None, Parameter(help="Capture layer outputs at this step; 0 is the prefill.")
    ] = None
    intra_layer_checkpoints: Annotated[
        int | None, Parameter(help="Capture the stages of this layer at that step.")
    ] = None
    forced_prefix: Annotated[
        str | None, Parameter(help="Token ids that are fed as if they were selected.")
    ] = None
    forced_prefix_binding_json: Annotated[
        Path | None, Parameter(help="The source binding of the forced prefix.")
    ] = None
    policy: Annotated[
        Literal["raw", "lis"],
        Parameter(help="raw greedy, or lis: structural suppression and repetition penalty."),
    ] = "raw"
    context: Annotated[int, Parameter(help="Positions; by default as many as needed.")] = 0
    batch: Annotated[int, Parameter(help="Rows that hold the same prompt.")] = 1
    diagnostics: Annotated[
        bool, Parameter(negative="", help="Say on stderr how each token was selected.")
    ] = False
    perf: Annotated[bool, Parameter(negative="", help="Measure the stages of the run.")] = False
    perf_per_token: Annotated[
        bool, Parameter(negative="", help="Say the time of each token; implies --perf.")
    ] = False
    perf_tag: Annotated[str, Parameter(help="The name of the measurement.")] = "run"


NO_ARTIFACTS = ArtifactOptions()


def check_options(
    options: ArtifactOptions, temperature: float, format: str, output: Path | None
) -> None:
    """Refuse combinations of flags, and targets that cannot be written, before anything loads."""
    from cke.artifacts.refusal import refuse_request
    from cke.artifacts.writing import check_target

    if options.layer_trace_json is not None and options.layer_checkpoints is None:
        refuse_request("--layer-trace-json requires --layer-checkpoints")
    if options.intra_layer_checkpoints is not None:
        if options.layer_checkpoints is None:
            refuse_request("--intra-layer-checkpoints requires --layer-checkpoints")
        if options.layer_trace_json is None:
            refuse_request("--intra-layer-checkpoints requires --layer-trace-json")
    _check_prefix_options(options)
    if temperature != 0:
        refuse_request("artifacts describe greedy selection: expected --temperature 0")
    if format != "human" or output is not None:
        refuse_request("artifact flags expect neither --format nor --output")
    targets = [path for path in _targets(options) if path is not None]
    if len({path.resolve() for path in targets}) != len(targets):
        refuse_request("each artifact expects a path of its own")
    for path in targets:
        check_target(path)


def _check_prefix_options(options: ArtifactOptions) -> None:
    from cke.artifacts.refusal import refuse_request

    binding = options.forced_prefix_binding_json
    if binding is not None and options.forced_prefix is None:
        refuse_request("--forced-prefix-binding-json requires --forced-prefix")
    if binding is not None and options.report_json is None:
        refuse_request("--forced-prefix-binding-json requires --report-json")
    if options.forced_prefix is not None and binding is None:
        if options.report_json is not None:
            refuse_request(
                "--report-json with --forced-prefix requires --forced-prefix-binding-json"
            )
        if not options.diagnostics:
            refuse_request("--forced-prefix requires --diagnostics or --forced-prefix-binding-json")


def _targets(options: ArtifactOptions) -> tuple[Path | None, ...]:
    return tuple(
        getattr(options, name.name)
        for name in fields(options)
        if name.name in ("report_json", "report_md", "trace_json", "layer_trace_json")
    )


def run_with_artifacts(
    options: ArtifactOptions,
    model: "Model",
    request: Request,
    times: Sequence[int],
) -> int:
    """Run step by step, show the tokens, and write what was asked for.

    `times` are when the tokenizer began to load, was loaded, and had encoded the prompt.
    """
    from cke.api.execution import ModelEngine
    from cke.artifacts.execute import execute
    from cke.artifacts.lines import run_lines

    mode: InputMode = "tokens"
    if request.prompt is not None:
        mode = "vocab_prompt" if model.files.format == "gguf" else "hf_tokenizer_prompt"
    engine = ModelEngine(model, mode)
    load = {
        **engine.facts.load_ns,
        "tokenizer_load": times[1] - times[0],
        "tokenizer_encode": times[2] - times[1],
    }
    engine.facts = msgspec.structs.replace(engine.facts, load_ns=load)
    writer = TokenWriter(model, request.prompt is not None, True)

    def listen(decision: "Decision") -> None:
        writer.add([decision.selected_token_id])

    execution = execute(engine, run_request(options, request), listen)
    writer.end()
    for line in run_lines(execution, engine.facts, diagnostics=options.diagnostics):
        print(line, file=sys.stderr)
    write_artifacts(options, execution)
    return execution.report.report.status_code


def run_request(options: ArtifactOptions, request: Request) -> "RunRequest":
    """Return the request of the flags."""
    from cke.artifacts.engine import RunRequest
    from cke.artifacts.fingerprints import LIS_GREEDY, RAW_GREEDY
    from cke.artifacts.reading import read_binding

    binding = options.forced_prefix_binding_json
    return RunRequest(
        tokens=tuple(request.tokens),
        generate=request.new_tokens,
        policy=LIS_GREEDY if options.policy == "lis" else RAW_GREEDY,
        context=options.context,
        batch=options.batch,
        stops=request.stops,
        forced=parse_prefix(options.forced_prefix),
        binding=None if binding is None else read_binding(binding),
        checkpoint_step=options.layer_checkpoints,
        intra_layer=options.intra_layer_checkpoints,
        diagnostics=options.diagnostics,
        perf=options.perf or options.perf_per_token,
        perf_per_token=options.perf_per_token,
        perf_tag=options.perf_tag,
        text=request.prompt is not None,
    )


def parse_prefix(text: str | None) -> tuple[int, ...]:
    """Return the ids of `ID ID …`, at most 4,096 bytes of them."""
    from cke.artifacts.refusal import refuse_request

    if text is None:
        return ()
    items = text.split()
    if not items or len(text) > MAX_PREFIX_TEXT or not all(item.isdecimal() for item in items):
        refuse_request('--forced-prefix expects token ids such as "5 6 7"')
    return tuple(map(int, items))


def write_artifacts(options: ArtifactOptions, execution: "Execution") -> None:
    """Write each artifact that was asked for; all are checked before the first is written."""
    from cke.artifacts.markdown import render_markdown
    from cke.artifacts.refusal import refuse_capture
    from cke.artifacts.writing import encode, write_file

    report = encode(execution.report)
    files: list[tuple[Path, bytes]] = []
    if options.report_json is not None:
        files.append((options.report_json, report))
    if options.report_md is not None:
        files.append((options.report_md, render_markdown(execution.report).encode() + b"\n"))
    if options.trace_json is not None:
        files.append((options.trace_json, encode(execution.trace)))
    if options.layer_trace_json is not None:
        if execution.layers is None:
            refuse_capture("no layer was captured")
        files.append((options.layer_trace_json, encode(execution.layers)))
    for path, data in files:
        write_file(path, data)
