"""Break every rule of some modules once, and see a test fail: the mutation run.

python -m tests.meta.mutation SUBJECT [MODULE ...] [--seconds N] [--again] [--all-tests]

Each rule is tried in a forked process with the fastest tests that run its lines, and no file is
changed. What was caught is kept in runs/mutation/ by the hash of its module, so that a run which
was cut short goes on; survivors are always tried again. The exit code says whether one is left
that `tests/meta/mutation/SUBJECT.toml` does not excuse with a reason.
"""

import argparse
import ast
import gc
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec
import pytest

from tests.meta.noticing import (
    MOST,
    PATIENCE,
    ROOT,
    Module,
    Row,
    coverage,
    forget,
    in_child,
    make_warm,
    noticing,
    passes,
)
from tests.meta.rules import Rule, broken, rules

KEPT = ROOT / "runs" / "mutation"


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
    items: list[pytest.Item], module: Module, found: dict[str, Row], tell: "Teller"
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
    subject: Subject, module: Module, found: dict[str, Row], tell: "Teller"
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
    kept = KEPT / f"{chosen.subject}.coverage.json"

    def functions() -> int:
        def work(items: list[pytest.Item]) -> None:
            make_warm(subject.warm)
            found = coverage(items, every, modules, kept, subject.warm)
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
    found = msgspec.json.decode(kept.read_bytes(), type=dict[str, Row])
    for module in modules:
        try_import_rules(subject, module, found, tell)
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
