"""The process that runs X-Ray: it is told what a user would say, and nothing of the validator.

It imports the packages that take long to import, but nothing of CKE, and forks one child for each
task, which imports CKE from the tree it is given. Started by path, so that no CKE is imported.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SLOW = (
    "numpy jinja2 lark msgspec ml_dtypes rfc8785 gguf safetensors jax jax.numpy torch transformers "
    "transformers.models.llama.modeling_llama transformers.models.auto.modeling_auto"
)


def main() -> int:
    """Answer one JSON line for each task on stdin, until it ends."""
    for name in SLOW.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        ended, seconds = _forked(task)
        answers.write(json.dumps({"ended": ended, "seconds": round(seconds, 2)}) + "\n")
        answers.flush()
    return 0


def _forked(task: dict[str, Any]) -> tuple[str, float]:
    """Run a task in a child; return `done` or how it ended otherwise, and its processor time."""
    child = os.fork()
    if child == 0:
        _child(task)
    deadline = time.monotonic() + task["seconds"]
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return "done" if code == 0 else f"exit {code}", usage.ru_utime + usage.ru_stime
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    _, _, usage = os.wait4(child, 0)
    return f"not done after {task['seconds']} s", usage.ru_utime + usage.ru_stime


def _child(task: dict[str, Any]) -> None:
    """Do a task; its text goes to the log, an error's last line to `error`."""
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(task["environment"])
    sys.path.insert(0, task["source"])
    code = 1
    try:
        TASKS[task["task"]](task["arguments"])
        code = 0
    except BaseException as error:
        traceback.print_exc()
        Path(task["error"]).write_text(f"{type(error).__name__}: {error}", "utf-8")
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _xray(arguments: dict[str, Any]) -> None:
    """Diagnose as `cke.xray(...)` does, after a second oracle if one is named; write the report."""
    report = Path(arguments.pop("report"))
    for name in ("tokens", "forced"):
        if name in arguments:
            arguments[name] = tuple(map(tuple, arguments[name]))
    if "segments" in arguments:
        arguments["segments"] = tuple(arguments["segments"])
    api = importlib.import_module("cke.api.diagnosis")
    model, other = arguments.pop("model"), arguments.pop("second", None)
    if other is not None:
        folder = report.with_name("second")
        api.xray(model, **{**arguments, "oracle": other, "out": folder})
        arguments["second"] = api.read_second(folder / "report.json")
    found = api.xray(model, **arguments)
    encode = importlib.import_module("msgspec").json.encode
    report.write_bytes(encode(found))


def _record(arguments: dict[str, Any]) -> None:
    """Record an oracle as `cke oracle` does."""
    schedule = importlib.import_module("cke.runtime.schedule")
    request = schedule.CaptureRequest(
        tokens=tuple(map(tuple, arguments["tokens"])),
        segments=tuple(arguments["segments"]),
        forced=tuple(map(tuple, arguments["forced"])),
    )
    importlib.import_module("cke.api.evidence").oracle_trace(
        Path(arguments["model"]),
        arguments["oracle"],
        request,
        Path(arguments["out"]),
        dtype=arguments["dtype"],
    )


def _model(arguments: dict[str, Any]) -> None:
    """Make a tiny model, a variant of it, or its GGUF form, quantised when the family asks so."""
    models = importlib.import_module("cke.validator.models")
    family, target = arguments["family"], Path(arguments["out"])
    form = "" if family in models.VARIANTS else family.partition(".")[2]
    if form:
        family = family.removesuffix(f".{form}")
    folder = target.parent / family
    if not (folder / "config.json").is_file():
        models.make_model(family, folder)
    if form:
        plain = target if form == "gguf" else target.with_name(f"{target.name}.plain")
        importlib.import_module("cke.oracles.gguf_writer").write_gguf(folder, plain)
        if form == "q4_1.gguf":
            models.quantise(plain, target)


def _decided(arguments: dict[str, Any]) -> None:
    """Draw a prompt that leaves no choice of a model's oracle to rounding."""
    decided = importlib.import_module("cke.validator.decided")
    decided.write_request(Path(arguments["model"]), arguments["request"], Path(arguments["out"]))


TASKS = {"xray": _xray, "record": _record, "model": _model, "decided": _decided}

if __name__ == "__main__":
    sys.exit(main())
