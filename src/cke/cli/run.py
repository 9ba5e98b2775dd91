"""`cke run`: a model speaks. The text goes to stdout, the picture of what happened to stderr."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from cke.cli.output import Format, Output, deliver, encode_json, progress
from cke.cli.run_artifacts import NO_ARTIFACTS, ArtifactOptions, check_options, run_with_artifacts
from cke.cli.token_writer import Request, TokenWriter
from cke.cli.weights import AllowPickle
from cke.errors import CkeError, Diagnostic, Note

if TYPE_CHECKING:
    from cke.api import Model
    from cke.runtime.session import Session

STREAM = 4
"""Tokens between two looks at the device while text is shown."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `cke run --format json` prints. Sizes in bytes, times in seconds."""

    model: str
    circuit: str
    driver: str
    dtype: str
    prompt: str | None
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    stopped: bool
    counts: dict[str, int]
    kernels: tuple[str, ...]
    weight_bytes: int
    state_bytes: int
    seconds: dict[str, float]
    rates: dict[str, float | None]
    settings: dict[str, Any]


def run(
    *,
    model: Path,
    prompt: str | None = None,
    tokens: str | None = None,
    generate: Annotated[int, Parameter(name=("--generate", "-n"))] = 32,
    circuit: str | None = None,
    dtype: str = "float32",
    driver: str = "auto",
    chat: bool = False,
    allow_pickle: AllowPickle = False,
    ignore_eos: bool = False,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    format: Format = "human",
    output: Output = None,
    artifacts: ArtifactOptions = NO_ARTIFACTS,
) -> int:
    """Generate tokens with a model, through code generated from its circuit.

    Parameters
    ----------
    model
        A model folder, or a GGUF file.
    prompt
        A text to continue.
    tokens
        Token ids to continue, in place of a text: "1 2 3".
    generate
        The most new tokens.
    circuit
        A library circuit or a `.circuit` file; found from the model's config when left out.
    dtype
        float32 or bfloat16.
    driver
        auto, per_layer or whole_step (three ways to the same bits), or eager (op by op).
    chat
        Put the prompt into the model's chat template, as a user's message.
    ignore_eos
        Go on after an end token.
    seed
        The seed of the sampling.
    temperature
        0 is greedy.
    top_k
        Choose among this many tokens; 0 is all.
    top_p
        Choose among the likeliest tokens that reach this probability.
    """
    from cke.api import load
    from cke.runtime.sampling import Sampling, check_sampling

    sampling = check_sampling(Sampling(temperature, top_k, top_p, seed))
    _check_input(prompt, tokens, chat)
    if artifacts != NO_ARTIFACTS:
        check_options(artifacts, temperature, format, output)
    loaded = load(
        model, circuit, dtype, driver=driver, allow_pickle=allow_pickle, progress=progress
    )
    times = [time.perf_counter_ns()]
    if prompt is not None:
        _ = loaded.tokenizer
    times.append(time.perf_counter_ns())
    request = _request(loaded, prompt, tokens, chat, generate, ignore_eos)
    if artifacts != NO_ARTIFACTS:
        times.append(time.perf_counter_ns())
        return run_with_artifacts(artifacts, loaded, request, times)
    shown = format == "human" and output is None
    report = _generate(loaded, request, sampling, shown)
    deliver(
        format,
        output,
        {
            "human": lambda: "" if shown else _result(report),
            "json": lambda: encode_json(report),
        },
    )
    if format == "human":
        from cke.cli.picture import show

        show(report, loaded.manifest)
    return 0


def _check_input(prompt: str | None, tokens: str | None, chat: bool) -> None:
    if (prompt is None) == (tokens is None):
        got = "neither" if prompt is None else "both"
        raise _usage(f"expected `--prompt` or `--tokens`, got {got}", "give one of them")
    if chat and prompt is None:
        raise _usage("`--chat` expects `--prompt`, got `--tokens`", "give a text")


def _usage(message: str, help_text: str) -> CkeError:
    note = Note(help_text, label="help")
    return CkeError(Diagnostic(code="CKE609", message=message, notes=(note,)))


def _request(
    model: "Model",
    prompt: str | None,
    tokens: str | None,
    chat: bool,
    new_tokens: int,
    ignore_eos: bool,
) -> Request:
    ids = parse_tokens(tokens) if tokens is not None else _encode(model, prompt or "", chat)
    return Request(
        tokens=ids,
        prompt=prompt,
        new_tokens=new_tokens,
        stops=() if ignore_eos else model.end_tokens,
    )


def parse_tokens(text: str) -> list[int]:
    """Return the ids of `1 2 3` or `1,2,3`."""
    items = text.replace(",", " ").split()
    wrong = [item for item in items if not item.lstrip("-").isdecimal()]
    if wrong:
        raise _usage(
            f"`--tokens` expects integers, got `{wrong[0]}`", 'write ids such as --tokens "1 2 3"'
        )
    return [int(item) for item in items]


def _encode(model: "Model", prompt: str, chat: bool) -> list[int]:
    tokenizer = model.tokenizer
    if not chat:
        return tokenizer.encode(prompt)
    from cke.chat import render_chat

    ends = sorted(tokenizer.eos)
    special = {
        "bos_token": tokenizer.text_of(tokenizer.bos) if tokenizer.bos is not None else "",
        "eos_token": tokenizer.text_of(ends[0]) if ends else "",
    }
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.encode(
        render_chat(tokenizer.chat_template, messages, tokens=special), special=False
    )


def _generate(model: "Model", request: Request, sampling: Any, shown: bool) -> RunReport:
    session = model.session(rows=len(request.tokens) + max(request.new_tokens, 1))
    started = time.perf_counter()
    session.prefill([request.tokens])
    new: list[int] = []
    arrivals: list[tuple[float, int]] = []
    writer = TokenWriter(model, request.prompt is not None, shown)
    chunk = STREAM if shown else 64
    for columns in session.stream(request.new_tokens, sampling, request.stops, chunk):
        fresh = [int(token) for token in columns[0] if token >= 0]
        new += fresh
        arrivals.append((time.perf_counter(), len(new)))
        writer.add(fresh)
    writer.end()
    return _report(model, request, session, new, [(started, 0), *arrivals])


def _result(report: RunReport) -> str:
    return report.text if report.text is not None else " ".join(map(str, report.tokens))


def _report(
    model: "Model",
    request: Request,
    session: "Session",
    new: list[int],
    arrivals: list[tuple[float, int]],
) -> RunReport:
    from cke.api.model import counts, settings

    text = model.tokenizer.decode(new) if request.prompt is not None else None
    counted = counts(model.manifest)
    prefill = arrivals[1][0] - arrivals[0][0]
    decode = arrivals[-1][0] - arrivals[1][0]
    return RunReport(
        model=model.name,
        circuit=f"{model.manifest.circuit}@{model.manifest.circuit_version}",
        driver=session.driver.name,
        dtype=model.dtype,
        prompt=request.prompt,
        prompt_tokens=tuple(request.tokens),
        tokens=tuple(new),
        text=text,
        stopped=bool(new) and new[-1] in request.stops,
        counts=counted,
        kernels=tuple(sorted(set(_kernels(model)))),
        weight_bytes=model.weight_bytes,
        state_bytes=session.state_bytes,
        seconds={**model.seconds, "first_token": prefill, "decode": decode},
        rates={
            "first_token": len(request.tokens) / prefill,
            "decode": steady_rate(arrivals[1:]),
        },
        settings=settings(model),
    )


def _kernels(model: "Model") -> Iterator[str]:
    for program in model.manifest.calls.programs:
        for function in program.functions:
            yield from {call.kernel_id for call in function.calls}


def steady_rate(arrivals: list[tuple[float, int]]) -> float | None:
    """Return tokens per second after the first arrival that may have compiled, None if too few."""
    if len(arrivals) < 3:
        return None
    (start, before), (end, after) = arrivals[1], arrivals[-1]
    return (after - before) / (end - start) if end > start else None
