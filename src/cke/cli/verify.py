"""`cke verify`: two runtimes on the same tokens, compared down to a stage of a layer.

Exit codes are those of the verification report: PASS 0, REGRESSION 4, INCONCLUSIVE 3, UNSUPPORTED
0 (6 with --require-supported), HARNESS_ERROR 2; SIGINT 130, SIGTERM 143.
"""

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from cke.cli.output import progress
from cke.cli.verify_packet import PACKET, forced_rows, keep_packet, xray_command

if TYPE_CHECKING:
    from cke.api.execution import ModelEngine
    from cke.artifacts.engine import RunRequest
    from cke.artifacts.verdict import Setting
    from cke.artifacts.verify import Findings, Runner

app = App(name="verify", help="Compare two runtimes on the same tokens, down to a stage.")


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every level takes."""

    out: Annotated[Path, Parameter(help="Where the attempts' folders go.")] = Path(".lis/verify")
    require_supported: Annotated[
        bool, Parameter(negative="", help="End in 6 when the comparison is unsupported.")
    ] = False
    debug_retain: Annotated[
        bool, Parameter(negative="", help="Keep the run reports and layer traces of every run.")
    ] = False
    stage_timeout_seconds: Annotated[
        int, Parameter(help="The most seconds between two stages; 0 is no limit.")
    ] = 0
    verbose: Annotated[bool, Parameter(negative="", help="Say every stage on stderr.")] = False


DEFAULTS = Common()
Tokens = Annotated[str, Parameter(help='The prompt as token ids, such as "1 2 3".')]
Generate = Annotated[int, Parameter(name=("--generate", "-n"), help="The most new tokens.")]


@app.command
def demo(*, scenario: Literal["pass", "regression"] = "pass", common: Common = DEFAULTS) -> int:
    """Run the whole flow on a seeded runtime, without a model.

    Parameters
    ----------
    scenario
        pass, or regression: the candidate has a planted fault.
    """
    from cke.artifacts.engine import RunRequest
    from cke.artifacts.seeded import Fault, SeededEngine
    from cke.artifacts.verdict import Setting
    from cke.artifacts.verify import EngineRunner

    fault = Fault(2, "mlp_norm_output", 1.3) if scenario == "regression" else None
    setting = Setting(
        level="demo",
        mode="runtime_differential",
        submode="runtime_regression",
        reference="seeded",
        candidate="seeded" if fault is None else "seeded-with-fault",
        require_supported=common.require_supported,
    )
    request = RunRequest(tokens=(3, 5, 7), generate=12)
    return attempt(
        common,
        setting,
        request,
        lambda: (EngineRunner(SeededEngine()), EngineRunner(SeededEngine(fault=fault))),
    )


@app.command
def backend(
    *,
    model: Path,
    tokens: Tokens,
    generate: Generate = 32,
    reference_dtype: str = "float32",
    candidate_dtype: str = "float32",
    reference_circuit: str | None = None,
    candidate_circuit: str | None = None,
    reference_driver: str = "per_layer",
    candidate_driver: str = "per_layer",
    policy: Literal["raw", "lis"] = "raw",
    common: Common = DEFAULTS,
) -> int:
    """Compare two builds of one model: circuits, dtypes or drivers.

    Parameters
    ----------
    model
        The model folder or .gguf file.
    reference_dtype
        float32 or bfloat16, of the reference.
    candidate_dtype
        float32 or bfloat16, of the candidate.
    reference_circuit
        A library circuit or a .circuit file; by default the family of the model's config.
    candidate_circuit
        The same for the candidate.
    reference_driver
        per_layer, whole_step or eager.
    candidate_driver
        The same for the candidate.
    policy
        raw greedy, or lis.
    """
    from cke.artifacts.verify import EngineRunner

    sides = (
        (reference_circuit, reference_dtype, reference_driver),
        (candidate_circuit, candidate_dtype, candidate_driver),
    )
    names = [f"{dtype}:{driver}:{_stem(circuit)}" for circuit, dtype, driver in sides]
    setting = _setting(common, "backend", names[0], names[1])
    if reference_dtype != candidate_dtype:
        setting = _replace(setting, submode="precision_policy_comparison")

    engines: list[ModelEngine] = []

    def runners() -> "tuple[Runner, Runner]":
        engines.extend(_engine(model, *side) for side in sides)
        one, two = map(EngineRunner, engines)
        return one, two

    request = _request(tokens, generate, policy)

    def command(folder: Path, findings: "Findings") -> list[str]:
        oracle = folder / PACKET
        keep_packet(engines[0], request.tokens, findings, oracle)
        circuit, dtype, _ = sides[1]
        return xray_command(model, circuit, dtype, str(oracle), folder)

    return attempt(common, setting, request, runners, command)


@app.command
def runtime(
    *,
    model: Path,
    tokens: Tokens,
    generate: Generate = 32,
    reference_command: str | None = None,
    recorded: Path | None = None,
    dtype: str = "float32",
    circuit: str | None = None,
    policy: Literal["raw", "lis"] = "raw",
    context: int = 0,
    common: Common = DEFAULTS,
) -> int:
    """Compare this runtime, the candidate, with a second one or with a recorded run.

    Parameters
    ----------
    model
        The model folder or .gguf file.
    reference_command
        A command that takes the artifact flags, such as another build's `cke run`.
    recorded
        The run report of a recorded run, in place of a command; it cannot be reproduced.
    dtype
        float32 or bfloat16, of this runtime.
    circuit
        A library circuit or a .circuit file; by default the family of the model's config.
    policy
        raw greedy, or lis.
    context
        Positions; by default as many as needed.
    """
    from cke.artifacts.outside import CommandRunner, RecordedRunner
    from cke.artifacts.refusal import refuse_request
    from cke.artifacts.verify import EngineRunner

    if (reference_command is None) == (recorded is None):
        refuse_request("expected --reference-command or --recorded, and not both")
    name = "recorded" if recorded is not None else "command"
    setting = _setting(common, "runtime", name, f"{dtype}:{_stem(circuit)}")

    def runners() -> "tuple[Runner, Runner]":
        first: Runner
        if reference_command is None:
            assert recorded is not None, "one of the two is given"
            first = RecordedRunner(recorded)
        else:
            first = CommandRunner(shlex.split(reference_command), model)
        return first, EngineRunner(_engine(model, circuit, dtype, "per_layer"))

    request = _request(tokens, generate, policy, context)

    def command(folder: Path, findings: "Findings") -> list[str]:
        live = "llamacpp" if model.suffix == ".gguf" else "pytorch"
        rows = forced_rows(request.tokens, findings)
        forced = ["--tokens", rows[0], *(["--steps", rows[1]] if rows[1] else [])]
        return [*xray_command(model, circuit, dtype, live, folder), *forced]

    return attempt(common, setting, request, runners, command)


def _stem(circuit: str | None) -> str:
    return "found" if circuit is None else Path(circuit).stem


def _setting(
    common: Common, level: Literal["backend", "runtime"], reference: str, candidate: str
) -> "Setting":
    from cke.artifacts.verdict import Setting

    return Setting(
        level=level,
        mode="backend_differential" if level == "backend" else "runtime_differential",
        submode="runtime_regression",
        reference=reference,
        candidate=candidate,
        require_supported=common.require_supported,
    )


def _replace(setting: "Setting", submode: Literal["precision_policy_comparison"]) -> "Setting":
    import msgspec

    return msgspec.structs.replace(setting, submode=submode)


def _request(tokens: str, generate: int, policy: str, context: int = 0) -> "RunRequest":
    from cke.artifacts.engine import RunRequest
    from cke.artifacts.fingerprints import LIS_GREEDY, RAW_GREEDY
    from cke.cli.run import parse_tokens

    chosen = LIS_GREEDY if policy == "lis" else RAW_GREEDY
    ids = tuple(parse_tokens(tokens))
    return RunRequest(tokens=ids, generate=generate, policy=chosen, context=context)


def _engine(model: Path, circuit: str | None, dtype: str, driver: str) -> "ModelEngine":
    from cke.api import load
    from cke.api.execution import ModelEngine

    loaded = load(model, circuit, dtype, driver=driver, progress=progress)
    return ModelEngine(loaded)


class _Interrupted(BaseException):
    """A signal ended the attempt."""


class _TooLong(BaseException):
    """A stage took longer than it may."""


def attempt(
    common: Common,
    setting: "Setting",
    request: "RunRequest",
    runners: "Callable[[], tuple[Runner, Runner]]",
    command: "Callable[[Path, Findings], list[str]] | None" = None,
) -> int:
    """Run one attempt to its report, whatever happens, and return its exit code.

    `command` gives the words of the diagnosis that goes on from a regression.
    """
    from cke.artifacts.attempt import Attempt
    from cke.artifacts.refusal import UnsupportedError
    from cke.artifacts.verdict import INTERRUPTED, build_report, verdict_of
    from cke.artifacts.verify import Comparison, Findings
    from cke.errors import CkeError

    found = Attempt(common.out)
    findings = Findings()
    following: list[str] = []

    def note(stage: str, status: str, sha: str | None) -> None:
        found.note(stage, status, sha)
        _arm(common.stage_timeout_seconds)
        if common.verbose:
            progress(f"lis-verify: {stage} {status}")

    try:
        with _signals():
            _arm(common.stage_timeout_seconds)
            pair = runners()
            note("runtimes", "ready", None)
            comparison = Comparison(*pair, request, setting.mode, setting.submode, note)
            findings = comparison.findings
            comparison.run()
            if common.debug_retain:
                for name, document in comparison.kept.items():
                    found.keep(name, document)
            if command is not None and verdict_of(findings) == "REGRESSION":
                following = command(found.folder, findings)
                note("xray_packet", "ready", None)
        report = build_report(found, setting, findings)
    except UnsupportedError as error:
        message = error.diagnostics[0].message
        report = build_report(found, setting, findings, "UNSUPPORTED", message)
    except CkeError as error:
        print(error, file=sys.stderr)
        message = error.diagnostics[0].message
        report = build_report(found, setting, findings, "HARNESS_ERROR", message)
    except _TooLong:
        report = build_report(found, setting, findings, "HARNESS_ERROR", "stage_timeout")
    except (KeyboardInterrupt, _Interrupted) as error:
        name = "SIGTERM" if isinstance(error, _Interrupted) else "SIGINT"
        found.note("attempt", f"interrupted_by_{name}")
        found.close()
        return INTERRUPTED[name]
    found.finish(report)
    found.close()
    print(f"{report.verdict} {report.reason}")
    print(f"report: {found.folder / 'report.md'}")
    if following:
        print(f"next: {shlex.join(following)}")
    return report.exit_code


def _arm(seconds: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGTERM and the timer into exceptions, and put the old handlers back."""

    def terminated(*_: object) -> None:
        raise _Interrupted

    def too_long(*_: object) -> None:
        raise _TooLong

    before = (
        signal.signal(signal.SIGTERM, terminated),
        signal.signal(signal.SIGALRM, too_long),
    )
    try:
        yield
    finally:
        _arm(0)
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])
