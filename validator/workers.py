"""Worker processes, one a thread: each runs tasks one after the other, each task in a child."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import cke

SECONDS = 900


class Worker:
    """A process that runs X-Ray for the validator; `cache` is its user's cache folder."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.environment = {"CKE_CACHE_DIR": str(cache)}
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / "worker.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stdin, stdout = self._pipes()
        stdin.close()
        stdout.close()
        self._process.wait()
        self._log.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None, "the worker has pipes"
        assert self._process.stdout is not None, "the worker has pipes"
        return self._process.stdin, self._process.stdout

    def run(
        self, task: str, arguments: dict[str, Any], folder: Path, source: Path | None = None
    ) -> tuple[str | None, float]:
        """Return why a task failed, None when it did not, and its processor seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        error = folder / f"{task}.error"
        error.unlink(missing_ok=True)
        line = {
            "task": task,
            "arguments": arguments,
            "source": str(source or Path(cke.__file__).parent.parent),
            "environment": self.environment,
            "log": str(folder / f"{task}.log"),
            "error": str(error),
            "seconds": SECONDS,
        }
        stdin, stdout = self._pipes()
        stdin.write(json.dumps(line).encode() + b"\n")
        stdin.flush()
        answer = json.loads(stdout.readline() or '{"ended": "gone", "seconds": 0}')
        if answer["ended"] == "done":
            return None, answer["seconds"]
        text = error.read_text("utf-8") if error.is_file() else answer["ended"]
        return text, answer["seconds"]
