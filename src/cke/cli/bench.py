"""`cke bench`: speed, start and memory, side by side with transformers and llama.cpp."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from cke.cli.output import Format, Output, deliver, encode_json, progress

if TYPE_CHECKING:
    from cke.api.bench.report import BenchReport, Ratio, Row


def bench(
    *,
    model: Path,
    dtype: str = "float32",
    rounds: Annotated[int, Parameter(validator=Number(gte=1))] = 5,
    starts: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    prefill: Annotated[tuple[int, ...], Parameter(help="Prompt lengths.")] = (128, 512, 1024),
    generate: Annotated[int, Parameter(name=("--generate", "-n"))] = 128,
    against: Annotated[tuple[str, ...], Parameter(help="transformers, llamacpp.")] = (
        "transformers",
        "llamacpp",
    ),
    processes: bool = True,
    capture: bool = True,
    format: Format = "human",
    json: Annotated[Path | None, Parameter(help="Write the report to this file as well.")] = None,
    reports: Annotated[
        Path | None, Parameter(help="Write run reports of the decode to this file, as a snapshot.")
    ] = None,
    output: Output = None,
) -> int:
    """Measure a model here: prefill, decode, start, memory and capture, in interleaved rounds.

    Exits with 1 when a goal is missed. Goals are those of SmolLM2-135M in float32.

    Parameters
    ----------
    model
        A model folder, or a GGUF file.
    rounds
        How often each subject runs; medians and intervals are over these.
    starts
        How often each process is started; as many as rounds by default.
    generate
        Tokens of a decode.
    processes
        Measure whole processes: time to the first token, and peak memory.
    capture
        Measure what it costs to keep every checkpoint.
    """
    from cke.api.bench.measure import Plan
    from cke.api.bench.measure import bench as measure

    plan = Plan(
        path=model,
        dtype=dtype,
        rounds=rounds,
        starts=starts,
        prefills=prefill,
        new_tokens=generate,
        oracles=against,
        processes=processes,
        capture=capture,
    )
    report = measure(plan, progress)
    if json is not None:
        deliver("json", json, {"json": lambda: encode_json(report)})
    if reports is not None:
        _write_reports(model, dtype, generate, rounds, reports)
    deliver(
        format,
        output,
        {"human": lambda: describe(report), "json": lambda: encode_json(report)},
    )
    return 1 if any(ratio.met is False for row in report.rows for ratio in row.ratios) else 0


def _write_reports(model: Path, dtype: str, generate: int, rounds: int, out: Path) -> None:
    from cke.api import load
    from cke.api.bench.measure import DECODE_PROMPT
    from cke.api.bench.reports import perf_snapshot
    from cke.artifacts.snapshot import encode_snapshot
    from cke.artifacts.writing import write_file

    loaded = load(model, None, dtype, driver="per_layer", progress=progress)
    tokens = range(1, DECODE_PROMPT + 1)
    write_file(out, encode_snapshot(perf_snapshot(loaded, tokens, generate, rounds)))


def describe(report: "BenchReport") -> str:
    """Return the report as aligned text: medians, then the ratios with their intervals."""
    lines = [f"{report.model} in {report.dtype}, {report.settings['rounds']} rounds", ""]
    for row in report.rows:
        lines += [row.name, *_medians(row), *map(_ratio, row.ratios), ""]
    return "\n".join([*lines, *report.notes]).rstrip()


def _medians(row: "Row") -> list[str]:
    width = max(map(len, row.medians))
    return [f"  {name:<{width}}  {_amount(value, row.unit)}" for name, value in row.medians.items()]


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:10.1f} MB"
    return f"{value:10.2f} {unit}"


def _ratio(ratio: "Ratio") -> str:
    goal = ""
    if ratio.goal is not None:
        goal = f", goal {ratio.goal:.2f} {'met' if ratio.met else 'MISSED'}"
    spread = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return f"  {ratio.median:.2f} x {ratio.other} ({spread}){goal}"
