"""Break every rule of some modules once, and see a test fail: the mutation run.

python -m tests.meta.mutation SUBJECT [MODULE ...] [--seconds N] [--again] [--all-tests]

Each rule is tried in a forked process with the fastest tests that run its lines, and no file is
changed. What was caught is kept in runs/mutation/ by the hash of its module, so that a run which
was cut short goes on; survivors are always tried again. The exit code says whether one is left
that `tests/meta/mutation/SUBJECT.toml` does not excuse with a reason.
"""

import argparse
import ast
import functools
import gc
import hashlib
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol

from tests.meta.rules import Rule, broken, rules

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "runs" / "mutation"
PATIENCE = 30
"""Seconds that one broken rule may take; a test that hangs has noticed it."""

MOST = 40
"""Tests that are tried for one rule, unless all are asked for."""

Lines = dict[str, list[int]]


class Subject(msgspec.Struct, frozen=True):
    """Modules as globs of files, the tests that hold them, and tests of what a module declares.

    `warm` are cached helpers of tests that give inputs, and are costly: no rule is tried in them.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    declared: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()


SUBJECTS = {
    "artifacts": Subject(
        modules=(
            "artifacts/*.py",
            "src/cke/cli/run_artifacts.py",
            "src/cke/cli/verify.py",
            "src/cke/cli/verify_packet.py",
            "src/cke/schemas/run_report.py",
            "src/cke/schemas/decode_trace.py",
            "src/cke/schemas/layer_trace.py",
            "src/cke/schemas/execution_manifest.py",
            "src/cke/schemas/differential.py",
            "src/cke/schemas/verification_report.py",
            "src/cke/schemas/snapshot.py",
        ),
        tests=("tests/artifacts", "tests/cli/test_run_artifacts.py"),
        declared=("tests/meta/test_reference.py",),
        without=("artifacts/__init__.py", "artifacts/seeded.py"),
        warm=("tests.artifacts.generations.workflow",),
    ),
}


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


def modules_of(subject: Subject, chosen: Sequence[str]) -> list[Module]:
    """The modules of a subject, or those whose last name part is chosen."""
    files = [path for pattern in subject.modules for path in sorted(ROOT.glob(pattern))]
    found = []
    for path in files:
        file = str(path.relative_to(ROOT))
        if file in subject.without or (chosen and path.stem not in chosen):
            continue
        parts = Path(file.removeprefix("src/cke/")).with_suffix("").parts
        source = path.read_text("utf-8")
        found.append(Module(".".join(("cke", *parts)), file, source, rules(source)))
    return found


class Plugin:
    """Collects the tests once, then hands them to a function in place of running them."""

    def __init__(self, work: Callable[[list[pytest.Item]], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of the loop over all tests."""
        usable = [item for item in session.items if not _is_slow(item)]
        self.work(usable)
        return True


def _is_slow(item: pytest.Item) -> bool:
    models = {"tiny_model", "smollm2_gguf", "model"}
    return bool(models & set(getattr(item, "fixturenames", ()))) or any(
        item.get_closest_marker(name) for name in ("slow", "nightly", "multiprocess", "real_model")
    )


def with_tests(paths: Sequence[str], work: Callable[[list[pytest.Item]], None]) -> None:
    """Collect the tests of some paths and give them to `work`, with nothing on stdout."""
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", *paths]
    quiet = os.open(KEPT / "pytest.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    before = os.dup(1)
    os.dup2(quiet, 1)
    try:
        code = pytest.main(arguments, plugins=[Plugin(work)])
        if code == pytest.ExitCode.INTERNAL_ERROR:
            raise SystemExit("pytest could not work: see its text without -q")
    finally:
        os.dup2(before, 1)


def passes(item: pytest.Item) -> bool:
    """Whether one test passes; its fixtures are torn down."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)


def in_child(work: Callable[[], int], patience: float = PATIENCE) -> int:
    """Run `work` in a forked process and return its code, 124 when it took too long."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + patience
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 125
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 124
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


def coverage(items: list[pytest.Item], modules: list[Module], name: str) -> dict[str, Any]:
    """The coverage of every test, kept as long as its file and the modules that it runs stand."""
    path = KEPT / f"{name}.coverage.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    hashes = {module.file: module.hash for module in modules}

    def key(item: pytest.Item, files: Iterable[str]) -> str:
        parts = [item.path.read_bytes(), *(hashes.get(file, "").encode() for file in sorted(files))]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    named = {item.nodeid: item for item in items}
    kept = {
        node: row
        for node, row in kept.items()
        if node in named and key(named[node], row[2]) == row[0]
    }
    missing = [item for item in items if item.nodeid not in kept]

    def work() -> int:
        new = covered(missing, modules, SUBJECTS[name].warm)
        rows = {node: [key(named[node], row[1]), *row] for node, row in new.items()}
        path.write_text(json.dumps(kept | rows))
        return 0

    if missing and in_child(work, 1200) != 0:
        raise SystemExit("the tests could not be run without a mutation")
    return json.loads(path.read_text()) if missing else kept


def noticing(rule: Rule, module: Module, found: dict[str, Any], most: int) -> list[str]:
    """The tests that could notice a broken rule, those first that run what few others run."""
    wanted = set(rule.lines)
    first, last = rule.scope
    ran = {node: row[2].get(module.file, ()) for node, row in found.items()}
    counts = Counter(line for lines in ran.values() for line in lines if first <= line <= last)
    everywhere = Counter(line for lines in ran.values() for line in lines)
    rows = []
    for node, lines in ran.items():
        if wanted & set(lines) if rule.function is not None else lines:
            near = min((counts[line] for line in lines if first <= line <= last), default=0)
            far = min((everywhere[line] for line in lines), default=0)
            rows.append((near, far, found[node][1], node))
    return [node for *_, node in sorted(rows)][:most]


def swap(module: Module, rule: Rule) -> None:
    """Give the function that holds the rule the code of its broken form."""
    assert rule.function is not None
    target: Any = importlib.import_module(module.name)
    for part in rule.function.split("."):
        target = inspect.getattr_static(target, part)
    target = getattr(target, "fget", None) or getattr(target, "__func__", None) or target
    function: FunctionType = inspect.unwrap(target)
    code = compile(broken(module.source, rule.index), function.__code__.co_filename, "exec")
    function.__code__ = next(
        item for item in _codes(code) if item.co_qualname == function.__code__.co_qualname
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _codes(item)


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with one rule broken."""

    def __init__(self, module: Module, rule: Rule) -> None:
        self.module, self.rule = module, rule

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """The spec of that module alone."""
        if name != self.module.name:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / self.module.file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the broken module."""
        tree: ast.Module = broken(self.module.source, self.rule.index)
        exec(compile(tree, str(ROOT / self.module.file), "exec"), module.__dict__)


def try_function_rules(
    items: list[pytest.Item], module: Module, found: dict[str, Any], tell: "Teller"
) -> None:
    """Break the rules inside functions, each in a fork of this process."""
    named = {item.nodeid: item for item in items}
    for rule in module.rules:
        if rule.function is None or tell.is_done(module, rule):
            continue
        nodes = noticing(rule, module, found, tell.most)

        def work(rule: Rule = rule, nodes: list[str] = nodes) -> int:
            swap(module, rule)
            return next((1 for node in nodes if not passes(named[node])), 0)

        tell.result(module, rule, in_child(work) if nodes else 0, nodes)


def try_import_rules(
    subject: Subject, module: Module, found: dict[str, Any], tell: "Teller"
) -> None:
    """Break what a module declares, each in a fork that imports everything anew."""
    for rule in module.rules:
        if rule.function is not None or tell.is_done(module, rule):
            continue
        nodes = noticing(rule, module, found, tell.most)
        order = {node: at for at, node in enumerate(nodes)}

        def run(items: list[pytest.Item], order: dict[str, int] = order) -> None:
            first = [item for item in items if item.nodeid not in order and _declares(item)]
            rest = sorted(
                (item for item in items if item.nodeid in order),
                key=lambda item: order[item.nodeid],
            )
            for item in [*first, *rest]:
                if not passes(item):
                    os._exit(1)
            os._exit(0)

        def _declares(item: pytest.Item) -> bool:
            return any(str(item.path).endswith(name) for name in subject.declared)

        def work(rule: Rule = rule, run: Callable[[list[pytest.Item]], None] = run) -> int:
            sys.meta_path.insert(0, Loader(module, rule))
            with_tests([*subject.declared, *subject.tests], run)
            return 1  # the module could not be imported

        tell.result(module, rule, in_child(work, 4 * PATIENCE), nodes)


class Teller:
    """Keeps what was caught, and says what was not."""

    def __init__(self, name: str, seconds: float, again: bool, most: int = MOST) -> None:
        self.most = most
        self.path = KEPT / f"{name}.jsonl"
        self.until = time.monotonic() + seconds
        self.caught: set[tuple[str, str, int]] = set()
        self.survived: list[tuple[Module, Rule]] = []
        self.left = 0
        if self.path.exists() and not again:
            rows = map(json.loads, self.path.read_text().splitlines())
            self.caught = {(file, code, index) for file, code, index in rows}

    def is_done(self, module: Module, rule: Rule) -> bool:
        """Whether the rule was caught before, or the time is over."""
        if (module.file, module.hash, rule.index) in self.caught:
            return True
        over = time.monotonic() > self.until
        self.left += over
        return over

    def result(self, module: Module, rule: Rule, code: int, nodes: list[str]) -> None:
        """Note how a broken rule ended."""
        if code != 0:
            key = (module.file, module.hash, rule.index)
            self.caught.add(key)
            with self.path.open("a") as file:
                file.write(json.dumps(key) + "\n")
            return
        self.survived.append((module, rule))
        sys.stderr.write(f"SURVIVED {describe(module, rule)} [{len(nodes)} tests]\n")


def describe(module: Module, rule: Rule) -> str:
    """A rule in one line."""
    return f"{module.file}:{rule.line} {rule.how}: {rule.text}"


def excuses(name: str) -> dict[str, str]:
    """Rules that no test can notice, as `file how: text`, each with its reason."""
    path = ROOT / "tests" / "meta" / "mutation" / f"{name}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the rules of the chosen modules, as long as the time lasts."""
    parser = argparse.ArgumentParser(prog="python -m tests.meta.mutation")
    parser.add_argument("subject", choices=sorted(SUBJECTS))
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--again", action="store_true", help="try what was caught before, too")
    parser.add_argument("--all-tests", action="store_true", help="try every test on a survivor")
    chosen = parser.parse_args(arguments)
    subject = SUBJECTS[chosen.subject]
    KEPT.mkdir(parents=True, exist_ok=True)
    every, modules = modules_of(subject, ()), modules_of(subject, chosen.modules)
    most = 1 << 20 if chosen.all_tests else MOST
    tell = Teller(chosen.subject, chosen.seconds, chosen.again, most)
    started = time.monotonic()

    def functions() -> int:
        def work(items: list[pytest.Item]) -> None:
            make_warm(subject.warm)
            found = coverage(items, every, chosen.subject)
            forget(subject.warm)
            items[0].session.config._tmp_path_factory.getbasetemp()
            tell.until += time.monotonic() - started
            gc.freeze()  # a fork copies no page for the sake of its collector
            for module in modules:
                try_function_rules(items, module, found, tell)

        with_tests(subject.tests, work)
        state = [(module.file, rule.index) for module, rule in tell.survived]
        (KEPT / f"survived-{os.getppid()}.json").write_text(
            json.dumps([state, tell.left, tell.until])
        )
        return 0

    in_child(functions, float("inf"))
    tell = _joined(tell, modules, chosen)
    kept = json.loads((KEPT / f"{chosen.subject}.coverage.json").read_text())
    for module in modules:
        try_import_rules(subject, module, kept, tell)
    return summary(modules, tell, excuses(chosen.subject))


def _joined(tell: Teller, modules: list[Module], chosen: argparse.Namespace) -> Teller:
    """What the forked process found, in this one."""
    new = Teller(chosen.subject, 0, False, tell.most)
    state, new.left, new.until = json.loads((KEPT / f"survived-{os.getpid()}.json").read_text())
    by_file = {module.file: module for module in modules}
    new.survived = [(by_file[file], by_file[file].rules[index]) for file, index in state]
    return new


def summary(modules: list[Module], tell: Teller, excused: dict[str, str]) -> int:
    """Print the numbers of each module; the code says whether an unexcused survivor is left."""
    rows = []
    for module in modules:
        alive = [rule for item, rule in tell.survived if item is module]
        named = [rule for rule in alive if f"{module.file} {rule.how}: {rule.text}" in excused]
        caught = sum((module.file, module.hash, rule.index) in tell.caught for rule in module.rules)
        rows.append((module.file, len(module.rules), caught, len(named), len(alive) - len(named)))
    print("| module | rules | caught | no test can notice | survived |\n|---|---|---|---|---|")
    for row in [*rows, ("all", *(sum(row[at] for row in rows) for at in range(1, 5)))]:
        print("| " + " | ".join(map(str, row)) + " |")
    if tell.left:
        print(f"{tell.left} rules are left for the next run")
    return 1 if tell.left or sum(row[4] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
