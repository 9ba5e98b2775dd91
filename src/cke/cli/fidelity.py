"""`cke fidelity`: suites, captures, scores, candidates, and artifacts under the laws.

Exit codes: 0 done, 2 a refusal of what was given, 4 a refusal of a measurement or an artifact.
"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from cke.cli.output import encode_json, progress

app = App(name="fidelity", help="Measure distribution fidelity under the laws.")
suite_app = App(name="suite", help="Build and verify suites of frozen tokens.")
app.command(suite_app)

app.command("cke.cli.fidelity_records:repeat_study", name="repeat-study")
app.command("cke.cli.fidelity_records:approve", name="approve")
app.command("cke.cli.fidelity_records:base_logits", name="base-logits")

Out = Annotated[Path, Parameter(help="The new folder.")]
ModeOption = Annotated[
    Literal["eager", "compiled"],
    Parameter(help="eager is authoritative; compiled is exploratory and never published."),
]


@suite_app.command
def build(
    model: Path,
    /,
    *,
    out: Out,
    contexts: int = 96,
    length: int = 256,
    texts: Path | None = None,
    recipe: str = "small-1",
) -> int:
    """Freeze token IDs of texts with a model's tokenizer.

    Parameters
    ----------
    model
        The model whose tokenizer it is.
    contexts
        How many contexts, over all strata.
    length
        Tokens of a context.
    texts
        A folder of texts, one JSON file per stratum and `sources.json`; else the shipped ones.
    recipe
        What the recipe is called.
    """
    from cke.api.fidelity import freeze_suite
    from cke.fidelity.suite import SuiteRequest

    request = SuiteRequest(contexts=contexts, length=length, recipe=recipe)
    print(freeze_suite(model, request, out, texts))
    return 0


@suite_app.command
def verify(suite: Path, /) -> int:
    """Derive every hash of a suite again, and prove its partitions disjoint.

    Parameters
    ----------
    suite
        The suite's folder.
    """
    from cke.fidelity.suite_reader import load_suite

    found = load_suite(suite)
    print(f"{found.manifest['suite_id']} {len(found.contexts)} contexts")
    return 0


@app.command
def capture(
    model: Path,
    /,
    *,
    suite: Path,
    out: Out,
    partition: Literal["all", "analysis", "qualification"] = "analysis",
    storage: Literal["hidden", "logits"] = "hidden",
    score_from: int = 0,
    rows: int | None = None,
    mode: ModeOption = "eager",
) -> int:
    """Store a reference's distributions over a suite; an interrupted capture goes on.

    Parameters
    ----------
    model
        The reference: a folder or a .gguf file.
    suite
        The suite's folder.
    partition
        Which contexts.
    storage
        hidden states with a proven head, or full logits.
    score_from
        The first scored position of each context.
    rows
        At most so many contexts, the strata in turn; a bounded prefix.
    """
    from cke.api.fidelity import open_subject
    from cke.fidelity.capture import CaptureRequest
    from cke.fidelity.capture import capture as take
    from cke.fidelity.suite_reader import load_suite

    request = CaptureRequest(
        partition=partition, score_from=score_from, storage=storage, limit=rows
    )
    manifest = take(open_subject(model, mode), load_suite(suite), request, out, progress)
    print(f"{manifest['rows']} contexts, storage {manifest['storage']}")
    return 0


@app.command
def score(
    model: Path,
    /,
    *,
    capture: Path,
    suite: Path,
    out: Out,
    shard: str = "0/1",
    fused_scale: Literal["own", "max"] = "own",
    activations: Literal["float", "q8_0"] = "float",
    freeze_receipt: Path | None = None,
    mode: ModeOption = "eager",
) -> int:
    """Score a candidate against a capture; the reference is not needed.

    Parameters
    ----------
    model
        A folder, a .gguf file, or a folder that `quantise` wrote.
    capture
        The capture's folder, or `reference/` of an artifact.
    suite
        The suite's folder.
    shard
        Score only the rows of part i of n, `i/n` from 0; `merge` joins the parts.
    fused_scale
        max scores a kernel with one global scale per fused layer, a substitution.
    activations
        q8_0 multiplies integers as llama.cpp does, a substitution; for Q8_0 and Q4_0 weights.
    freeze_receipt
        The receipt that qualification needs.
    """
    from cke.api.fidelity import open_subject
    from cke.fidelity.capture_reader import Capture
    from cke.fidelity.score import Shard, utc_now
    from cke.fidelity.score import score as run
    from cke.fidelity.suite_reader import load_suite
    from cke.schemas.reading import read_json

    receipt = None if freeze_receipt is None else read_json(freeze_receipt)
    report = run(
        Capture(capture),
        load_suite(suite),
        lambda: open_subject(model, mode, fused_scale=fused_scale, activations=activations),
        out,
        shard=Shard.parse(shard),
        clock=utc_now,
        freeze=receipt,
        progress=progress,
    )
    print("rows written" if report is None else f"mean_kld {report['mean_kld']!r}")
    return 0


@app.command
def merge(*shards: Path, capture: Path, suite: Path, out: Out) -> int:
    """Join the parts of one scoring run into its report.

    Parameters
    ----------
    shards
        The folders of all parts, in any order.
    capture
        The capture that they were scored against.
    suite
        The suite's folder.
    """
    from cke.fidelity.capture_reader import Capture
    from cke.fidelity.score import matching_contexts
    from cke.fidelity.score import merge as join
    from cke.fidelity.suite_reader import load_suite

    contexts = matching_contexts(Capture(capture), load_suite(suite))
    print(f"mean_kld {join(shards, out, contexts)['mean_kld']!r}")
    return 0


@app.command
def quantise(model: Path, /, *, format: str, out: Out, head: bool = False) -> int:
    """Write a weight-only candidate of a model's linear layers, and print what to open.

    Parameters
    ----------
    model
        A folder or a .gguf file.
    format
        int8, int4, fp8_e4m3, fp8_e5m2, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4 or nvfp4; or by
        llama.cpp's quantiser q2_k, q3_k_m, q4_k_s, q4_k_m, q5_k_s, q5_k_m or q6_k, a GGUF file.
    head
        The head's weight too; llama.cpp decides this itself.
    """
    from cke.api.fidelity import quantise_to
    from cke.fidelity.plan import CandidatePlan

    print(quantise_to(model, CandidatePlan(format=format, head=head), out))
    return 0


@app.command
def trace(model: Path, /, *, capture: Path, suite: Path, out: Out) -> int:
    """Store the expert IDs that a routed teacher selects over a capture's tokens.

    Parameters
    ----------
    model
        The reference.
    capture
        Its capture.
    suite
        The suite's folder.
    """
    from cke.api.fidelity import open_subject
    from cke.fidelity.capture_reader import Capture
    from cke.fidelity.paired import capture_trace
    from cke.fidelity.suite_reader import load_suite

    found = capture_trace(open_subject(model), Capture(capture), load_suite(suite), out)
    print(f"{found['rows']} contexts, {found['num_layers']} routed layers")
    return 0


@app.command
def paired(model: Path, /, *, capture: Path, suite: Path, trace: Path, scores: Path) -> int:
    """Run QxQ and BxQ of a routed candidate, and write `routing.json` beside its report.

    Parameters
    ----------
    model
        The candidate.
    capture
        The capture that it was scored against.
    suite
        The suite's folder.
    trace
        The teacher's trace.
    scores
        The candidate's scoring folder, with its report.
    """
    from cke.api.fidelity import open_subject
    from cke.errors.files import write_atomically
    from cke.fidelity.capture_reader import Capture
    from cke.fidelity.paired import run_paired
    from cke.fidelity.suite import pretty
    from cke.fidelity.suite_reader import load_suite
    from cke.schemas.reading import read_json

    found = run_paired(
        open_subject(model),
        Capture(capture),
        load_suite(suite),
        trace,
        read_json(scores / "report.json"),
    )
    write_atomically(scores / "routing.json", pretty(found))
    print(f"delta {found['routing_intervention_delta']!r}")
    return 0 if found["natural_control_parity"]["passed"] else 4


@app.command
def freeze(parameters: Path, /, *, out: Annotated[Path, Parameter(help="The receipt.")]) -> int:
    """Hash the frozen parameters, before a qualification result is read.

    Parameters
    ----------
    parameters
        JSON with `quantization_parameters`, `layer_assignments` and `acceptance_thresholds`.
    """
    from cke.errors.files import write_atomically
    from cke.fidelity.freeze import freeze as made
    from cke.fidelity.score import utc_now
    from cke.fidelity.suite import pretty
    from cke.schemas.reading import read_json

    receipt = made(read_json(parameters), utc_now())
    write_atomically(out, pretty(receipt))
    print(receipt["parameters_sha256"])
    return 0


@app.command
def campaign(plan: Path, /, *, out: Out) -> int:
    """Run a campaign file to an artifact, or go on with it.

    Parameters
    ----------
    plan
        TOML: `suite`, `reference`, `[candidates]`, and `rows`, `excluded`, `approvals` at will.
    """
    from cke.api.fidelity import campaign_tools
    from cke.fidelity.campaign import run_campaign
    from cke.fidelity.plan import read_plan

    receipts = run_campaign(read_plan(plan), plan.parent, out, campaign_tools(), progress)
    for name, receipt in receipts.items():
        state = "compliant" if receipt.compliant else f"fails laws {list(receipt.failed_laws)}"
        print(f"{name} mean_kld {receipt.mean_kld!r} {state}")
    return 0 if all(receipt.compliant for receipt in receipts.values()) else 4


@app.command
def check(artifact: Path, name: str, /) -> int:
    """Judge one candidate of an artifact anew, and print the receipt.

    Parameters
    ----------
    artifact
        The artifact's folder.
    name
        The candidate.
    """
    import msgspec

    from cke.fidelity.artifact import MODELS, PAGE
    from cke.fidelity.gather import gather
    from cke.fidelity.receipt import judge
    from cke.fidelity.score import utc_now

    page = artifact / MODELS / name / PAGE
    text = page.read_text("utf-8") if page.is_file() else None
    receipt = judge(msgspec.structs.replace(gather(artifact, name), page=text), utc_now)
    print(encode_json(receipt))
    return 0 if receipt.compliant else 4


@app.command
def leaderboard(artifact: Path, /) -> int:
    """Print the results of an artifact by comparability key.

    Parameters
    ----------
    artifact
        The artifact's folder.
    """
    from cke.fidelity.leaderboard import entries_of, render
    from cke.fidelity.leaderboard import leaderboard as board

    entries, excluded = entries_of(artifact)
    print(render(board(entries, excluded), excluded))
    return 0


@app.command
def publish(artifact: Path, target: Path, /) -> int:
    """Copy an artifact to a new folder, or refuse: credentials first, then every law.

    Parameters
    ----------
    artifact
        The artifact's folder.
    target
        The new folder.
    """
    from cke.fidelity.artifact import publish as copy
    from cke.fidelity.gather import gather
    from cke.fidelity.score import utc_now

    copy(artifact, target, gather, utc_now)
    print(f"published to {target}")
    return 0


@app.command
def laws() -> int:
    """Print the laws with every line that tests carry."""
    from cke.fidelity.laws import contract_page

    print(contract_page(), end="")
    return 0
