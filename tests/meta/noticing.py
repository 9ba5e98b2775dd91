"""Which tests run which lines of some modules, and which of them could notice a broken rule."""

import functools
import hashlib
import importlib
import math
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from tests.meta.rules import Rule

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 30
"""Seconds of the processor that one broken rule may take; a test that hangs has noticed it."""

WAITED = 10
"""How many times as long the clock may run."""

TOO_LONG = 124
"""The code of a process that took too long."""

MOST = 60
"""Nearest tests that are tried for one rule first."""

SECONDS = 20.0
"""Seconds that quick tests may take after those, unless all are asked for."""

Lines = dict[str, list[int]]


class Module(msgspec.Struct):
    """One module under mutation."""

    name: str
    file: str
    source: str
    rules: list[Rule]

    @property
    def hash(self) -> str:
        """The hash of its source."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


class Row(msgspec.Struct):
    """One test: the hash of its file, its seconds, and by module the hash and the lines it ran.

    `rarest` is how many tests run the line of all modules that the fewest others run.
    """

    test: str
    seconds: float
    lines: dict[str, tuple[str, list[int]]]
    rarest: int = 0


def passes(item: pytest.Item) -> bool:
    """Whether one test passes; its fixtures are torn down."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)


def in_child(work: Callable[[], int], patience: float = PATIENCE) -> int:
    """Run `work` in a forked process and return its code, `TOO_LONG` when it took too long."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if math.isfinite(patience):
                resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(patience),) * 2)
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + WAITED * patience
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            over = code in (-signal.SIGXCPU, -signal.SIGKILL)
            return TOO_LONG if over else 125 if code < 0 else code
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def forget(warm: Sequence[str]) -> None:
    """Empty the caches of test helpers but for the warm ones, so that a test runs what it needs."""
    for name, module in list(sys.modules.items()):
        for item in vars(module).values() if name.startswith("tests.") else ():
            cached = isinstance(item, functools._lru_cache_wrapper)
            if cached and f"{item.__module__}.{item.__name__}" not in warm:
                item.cache_clear()


def make_warm(warm: Sequence[str]) -> None:
    """Call the helpers whose results every forked process starts with."""
    for name in warm:
        module, _, function = name.rpartition(".")
        getattr(importlib.import_module(module), function)()


def covered(
    items: list[pytest.Item], modules: list[Module], warm: Sequence[str]
) -> dict[str, tuple[float, Lines]]:
    """How long each test takes, and the lines of the modules that it runs."""
    files = {str((ROOT / module.file).resolve()): module.file for module in modules}
    seen: dict[str, set[int]] = {}
    known: dict[CodeType, str | None] = {}

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen[known[frame.f_code] or ""].add(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code not in known:
            known[code] = files.get(str(Path(code.co_filename).resolve()))
        if known[code] is None:
            return None
        seen.setdefault(known[code] or "", set()).add(frame.f_lineno)
        return local

    found = {}
    for item in items:
        forget(warm)
        seen.clear()
        started = time.process_time()
        sys.settrace(trace)
        ok = passes(item)
        sys.settrace(None)
        if not ok:
            sys.stderr.write(f"{item.nodeid} fails without any mutation\n")
            continue
        lines = {file: sorted(numbers) for file, numbers in seen.items()}
        found[item.nodeid] = (time.process_time() - started, lines)
    return found


def coverage(
    items: list[pytest.Item],
    every: list[Module],
    chosen: list[Module],
    path: Path,
    warm: Sequence[str],
) -> dict[str, Row]:
    """The coverage of every test; one is traced anew when its file or a chosen module changed."""
    kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Row]) if path.exists() else {}
    hashes = {module.file: module.hash for module in every}
    changed = {module.file: module.hash for module in chosen}
    named = {item.nodeid: item for item in items}

    def stands(row: Row) -> bool:
        return all(changed.get(file, code) == code for file, (code, _) in row.lines.items())

    kept = {
        node: row
        for node, row in kept.items()
        if node in named and row.test == _hash(named[node].path) and stands(row)
    }
    missing = [item for item in items if item.nodeid not in kept]

    def work() -> int:
        for node, (seconds, lines) in covered(missing, every, warm).items():
            found = {file: (hashes[file], numbers) for file, numbers in lines.items()}
            kept[node] = Row(_hash(named[node].path), seconds, found)
        path.write_bytes(msgspec.json.encode(kept))
        return 0

    if missing:
        if in_child(work, float("inf")) != 0:
            raise SystemExit("the tests could not be run without a mutation")
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Row])
    _rank(kept)
    path.write_bytes(msgspec.json.encode(kept))
    return kept


def _rank(found: dict[str, Row]) -> None:
    """Note of each test how rare the rarest line is that it runs."""
    places = {
        node: [(file, line) for file, (_, lines) in row.lines.items() for line in lines]
        for node, row in found.items()
    }
    counts = Counter(place for ran in places.values() for place in ran)
    for node, row in found.items():
        row.rarest = min((counts[place] for place in places[node]), default=0)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text()


def names(node: str, module: Module) -> bool:
    """Whether the file of a test names a module."""
    return module.name in _text(node.partition("::")[0])


def noticing(rule: Rule, module: Module, found: dict[str, Row], seconds: float) -> list[str]:
    """The tests that could notice a broken rule, those first that run what few others run.

    After `MOST` of them come the quickest, as long as they take no more than `seconds` together.
    What a module declares can be noticed by the tests of any file that names it, too.
    """
    wanted = set(rule.lines)
    first, last = rule.scope
    ran = {node: row.lines.get(module.file, ("", []))[1] for node, row in found.items()}
    counts = Counter(line for lines in ran.values() for line in lines if first <= line <= last)
    rows = []
    for node, lines in ran.items():
        if wanted & set(lines) if rule.function is not None else lines or names(node, module):
            near = min((counts[line] for line in lines if first <= line <= last), default=0)
            rows.append((near, found[node].rarest, found[node].seconds, node))
    rows.sort()
    chosen = [node for *_, node in rows[:MOST]]
    for *_, taken, node in sorted(rows[MOST:], key=lambda row: row[2]):
        seconds -= taken
        if seconds < 0:
            break
        chosen.append(node)
    return chosen
