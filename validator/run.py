"""Run cases: inject, let X-Ray diagnose in a process of its own, judge, and keep each outcome.

A run can be stopped and taken up again: outcomes of the same catalogue and the same package are
kept, one file each. Workers take cases from one queue.
"""

import json
import queue
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from cke.errors.files import write_atomically
from cke.schemas.diagnosis import Diagnosis
from cke.schemas.validator_selftest import Outcome
from cke.validator.entries import Case
from cke.validator.inject import PACKAGE, inject
from cke.validator.judge import judge
from cke.validator.workers import Worker

Say = Callable[[str], None]


class Kept(msgspec.Struct, frozen=True):
    """An outcome on disk: it holds while the case and the package are what they were."""

    key: str
    outcome: Outcome
    seconds: float


class Bench:
    """The folder of a run: models, recordings, the cache and one folder for each case."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder = folder.resolve()
        self.package = package
        self._lock = threading.Lock()

    def case_folder(self, case: Case) -> Path:
        """Return the folder of a case."""
        return self.folder / "cases" / case.id

    def kept(self, case: Case) -> Kept | None:
        """Return the outcome that an earlier run left, if it still holds."""
        file = self.case_folder(case) / "outcome.json"
        if not file.is_file():
            return None
        found = msgspec.json.decode(file.read_bytes(), type=Kept)
        return found if found.key == self.key(case) else None

    def key(self, case: Case) -> str:
        """Return what an outcome depends on."""
        return sha256(self.package.encode() + b"\0" + msgspec.json.encode(case)).hexdigest()

    def model(self, worker: Worker, family: str) -> Path:
        """Return the model of a family, made when it is first asked for."""
        folder = self.folder / "models" / family
        with self._lock:
            if not folder.exists():
                arguments = {"family": family, "out": str(folder)}
                failed, _ = worker.run("model", arguments, self.folder / "models" / "log")
                if failed is not None:
                    raise RuntimeError(f"the model of `{family}` was not made: {failed}")
        return folder

    def recorded(self, worker: Worker, model: Path, request: dict[str, Any]) -> Path:
        """Return the trace of an oracle on a request, recorded when it is first asked for."""
        text = json.dumps([str(model), request], sort_keys=True)
        folder = self.folder / "recordings" / sha256(text.encode()).hexdigest()[:16]
        with self._lock:
            if not folder.exists():
                arguments = {**request, "model": str(model), "out": str(folder)}
                failed, _ = worker.run("record", arguments, self.folder / "recordings" / "log")
                if failed is not None:
                    raise RuntimeError(f"the oracle was not recorded: {failed}")
        return folder

    def decided(self, worker: Worker, model: Path, case: Case) -> dict[str, Any]:
        """Return what a control is asked in place of its request, where rounding could choose."""
        if case.kind == "fault" or case.dtype != "bf16" or not model.is_dir():
            return {}
        file = self.folder / "requests" / f"{case.family}.{case.request}.json"
        with self._lock:
            if not file.exists():
                arguments = {"model": str(model), "request": case.request, "out": str(file)}
                failed, _ = worker.run("decided", arguments, self.folder / "requests" / "log")
                if failed is not None:
                    raise RuntimeError(f"no prompt was drawn: {failed}")
        found: dict[str, Any] = json.loads(file.read_bytes())
        return found


def package_sha256() -> str:
    """Return the digest of the package as it is: every file but caches, by name and content."""
    digest = sha256()
    for folder in sorted(PACKAGE.iterdir(), key=lambda item: item.name):
        files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0")
                digest.update(sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def run_cases(
    cases: Iterable[Case], folder: Path, jobs: int = 1, say: Say = lambda text: None
) -> list[Kept]:
    """Return the outcome of every case, in the order of the cases."""
    bench = Bench(folder, package_sha256())
    wanted = list(cases)
    done = {case.id: kept for case in wanted if (kept := bench.kept(case)) is not None}
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    left = [case for case in wanted if case.id not in done]
    for case in left:
        waiting.put(case)
    if done:
        say(f"{len(done)} of {len(wanted)} cases are kept from an earlier run")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(bench.folder / f"worker-{n}", bench.folder / "cache"))
            for n in range(min(jobs, len(left)))
        ]

        def work(worker: Worker) -> None:
            while True:
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    return
                kept = run_case(bench, worker, case)
                done[case.id] = kept
                place = f"{len(done)}/{len(wanted)}"
                say(f"{place} {case.id}: {_word(kept)}, {kept.seconds:.1f} processor seconds")

        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [done[case.id] for case in wanted]


def _word(kept: Kept) -> str:
    from cke.validator.render import kind_of

    return kind_of(kept.outcome)


def run_case(bench: Bench, worker: Worker, case: Case) -> Kept:
    """Inject, diagnose and judge one case; its folder keeps report, log and outcome."""
    folder = bench.case_folder(case)
    shutil.rmtree(folder, ignore_errors=True)
    report = folder / "report.json"
    seconds = 0.0
    failed: str | None
    try:
        model = bench.model(worker, case.family)
        injected = inject(
            case,
            model,
            folder / "scratch",
            lambda path, request: bench.recorded(worker, path, request),
            bench.decided(worker, model, case),
        )
        arguments = {**injected.arguments, "out": str(folder / "out"), "report": str(report)}
        failed, seconds = worker.run("xray", arguments, folder, injected.source)
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        failed = f"{type(error).__name__}: {error}"
    found = None
    failed = failed and failed.replace(f"{bench.folder}/", "")
    if failed is None:
        found = msgspec.json.decode(report.read_bytes(), type=Diagnosis)
    kept = Kept(key=bench.key(case), outcome=judge(case, found, failed), seconds=seconds)
    write_atomically(folder / "outcome.json", msgspec.json.encode(kept))
    for name in ("scratch", "out", "second"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return kept
