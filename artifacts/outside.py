"""Runtimes outside this process: a command with the artifact flags, or a recorded report."""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cke.artifacts.engine import RunRequest
from cke.artifacts.reading import read_layer_trace, read_run_report
from cke.artifacts.refusal import refuse_capture
from cke.artifacts.verify import Captured


class CommandRunner:
    """Runs a command that takes the artifact flags, such as another build's `cke run`."""

    reruns = True

    def __init__(self, command: Sequence[str], model: Path) -> None:
        self._command = tuple(command)
        self._model = model

    def run(self, request: RunRequest) -> Captured:
        """Execute the command and read its artifacts as any reader would."""
        with tempfile.TemporaryDirectory(prefix="lis-") as name:
            folder = Path(name)
            arguments = [*self._command, "--model", str(self._model), *flags(request, folder)]
            try:
                done = subprocess.run(
                    arguments, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
                )
            except OSError as error:
                refuse_capture(f"`{self._command[0]}` cannot be run: {error.strerror}")
            if done.returncode not in (0, 1) or not (folder / "report.json").is_file():
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                refuse_capture(f"the command ended with {done.returncode}: {last[:200]}")
            report = read_run_report(folder / "report.json")
            layers = folder / "layers.json"
            return Captured(report, read_layer_trace(layers).document if layers.is_file() else None)


def flags(request: RunRequest, folder: Path) -> list[str]:
    """Return the flags that ask for the request, with its artifacts in the folder."""
    found = ["--tokens", " ".join(map(str, request.tokens)), "--generate", str(request.generate)]
    found += ["--context", str(request.rows), "--report-json", str(folder / "report.json")]
    if request.policy.suppression:
        found += ["--policy", "lis"]
    if not request.stops:
        found.append("--ignore-eos")
    if request.forced:
        found += ["--forced-prefix", " ".join(map(str, request.forced))]
    if request.binding is not None:
        binding = folder / "binding.json"
        binding.write_bytes(msgspec.json.encode(request.binding))
        found += ["--forced-prefix-binding-json", str(binding)]
    if request.checkpoint_step is not None:
        found += ["--layer-checkpoints", str(request.checkpoint_step)]
        found += ["--layer-trace-json", str(folder / "layers.json")]
    if request.intra_layer is not None:
        found += ["--intra-layer-checkpoints", str(request.intra_layer)]
    return found


class RecordedRunner:
    """Gives the run report that was recorded; it cannot run anything again."""

    reruns = False

    def __init__(self, report: Path) -> None:
        self._report = report

    def run(self, request: RunRequest) -> Captured:
        """Return the recorded run."""
        return Captured(read_run_report(self._report))
