"""Break every rule of some modules once, and see a test fail: the mutation run.

python -m tests.meta.mutation SUBJECT [MODULE ...] [--seconds N] [--again] [--all-tests]

Each rule is tried in a forked process with the nearest tests that run its lines, and no file is
changed. What became of it is kept in runs/mutation/ by the hash of its module, so that a run which
was cut short goes on; a survivor is tried again when a test changed. The exit code says whether one
is left that `tests/meta/mutation_SUBJECT.toml` does not excuse with a reason.
"""

import argparse
import ast
import gc
import hashlib
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import multiprocessing
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
    PATIENCE,
    ROOT,
    SECONDS,
    TOO_LONG,
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

    `declared` are beginnings of test ids, such as those of pages that a table makes.
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
        declared=(
            "tests/meta/test_reference.py::test_schema_is_up_to_date[lis.",
            "tests/meta/test_reference.py::test_made_page_is_up_to_date[../lis_verify_contract.md]",
            "tests/meta/test_reference.py::test_made_page_is_up_to_date[differential-verif",
        ),
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
    before = function.__code__
    code = compile(broken(module.source, rule.index), before.co_filename, "exec")
    function.__code__ = next(
        item for item in _codes(code) if item.co_qualname == before.co_qualname
    )
    swap_closures(before, function.__code__)


def swap_closures(before: CodeType, after: CodeType) -> None:
    """Give the closures that a function has made by now the code of its broken form."""
    pairs = {
        one: two
        for one, two in zip(_codes(before), _codes(after), strict=False)
        if one.co_name == two.co_name != "<genexpr>" and one.co_freevars == two.co_freevars
    }
    if not pairs:
        return
    gc.unfreeze()
    for item in gc.get_objects():
        if isinstance(item, FunctionType) and item.__code__ in pairs:
            item.__code__ = pairs[item.__code__]


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
        nodes = noticing(rule, module, found, tell.seconds)

        def work(rule: Rule = rule, nodes: list[str] = nodes) -> int:
            swap(module, rule)
            return next((1 for node in nodes if not passes(named[node])), 0)

        tell.result(module, rule, in_child(work) if nodes else 0, nodes)


def try_import_rules(
    subject: Subject, module: Module, found: dict[str, Row], tell: "Teller"
) -> None:
    """Break what a module declares, each in a fork that imports the modules and tests anew.

    The same tests run once with nothing broken: one that fails then would notice any rule.
    """
    left = [
        rule for rule in module.rules if rule.function is None and not tell.is_done(module, rule)
    ]
    if not left:
        return
    nodes = noticing(left[0], module, found, tell.seconds)
    if in_child(lambda: anew(subject, nodes), 4 * PATIENCE) != 0:
        where = KEPT.relative_to(ROOT) / "pytest.txt"
        raise SystemExit(f"{module.file}: its tests fail when it is imported anew: see {where}")
    for rule in left:
        if tell.is_done(module, rule):
            continue
        nodes = noticing(rule, module, found, tell.seconds)

        def work(rule: Rule = rule, nodes: list[str] = nodes) -> int:
            sys.meta_path.insert(0, Loader(module, rule))
            return anew(subject, nodes)

        tell.result(module, rule, in_child(work, 4 * PATIENCE), nodes)


def anew(subject: Subject, nodes: Sequence[str]) -> int:
    """Import modules and tests, run these tests and those of what modules declare; 0 if all pass.

    A test that fails stands at the end of what is kept of pytest.
    """
    order = {node: at for at, node in enumerate(nodes)}
    files = dict.fromkeys(name.partition("::")[0] for name in (*subject.declared, *nodes))

    def run(items: list[pytest.Item]) -> None:
        chosen = [i for i in items if i.nodeid in order or i.nodeid.startswith(subject.declared)]
        chosen.sort(key=lambda item: order.get(item.nodeid, -1))
        failed = next((item for item in chosen if not passes(item)), None)
        if failed is not None:
            with (KEPT / "pytest.txt").open("a") as text:
                text.write(f"\n{failed.nodeid} fails\n")
        os._exit(0 if failed is None else 1)

    with_tests(tuple(files), run)
    return 1  # a module could not be imported


def import_what_lasts(subject: Subject) -> None:
    """Have the libraries of the tests loaded, and neither the modules of cke nor the tests."""
    with_tests(subject.tests, lambda items: None)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).is_relative_to(ROOT):
            continue
        if name != "__main__" and not name.startswith("tests.meta"):
            del sys.modules[name]


class Teller:
    """Keeps what became of each rule, and says what was not noticed."""

    def __init__(
        self, name: str, tests: str, modules: Sequence[Module], chosen: argparse.Namespace
    ) -> None:
        self.seconds = 1e9 if chosen.all_tests else SECONDS
        self.tests = tests
        self.path = KEPT / f"{name}.jsonl"
        self.left = multiprocessing.Value("d", chosen.seconds)  # forked processes share it
        self.started = 0.0
        self.outcomes: dict[tuple[str, str, int], str] = {}
        if chosen.again and self.path.exists():
            files = {module.file for module in modules}
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)[0] not in files]
            self.path.write_text("".join(kept))
        self.read()

    def read(self) -> None:
        """Take in what is kept; a survivor counts while the tests are the same."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for file, code, index, outcome, tests, seconds in map(json.loads, lines):
            if outcome != "survived" or (tests == self.tests and seconds >= self.seconds):
                self.outcomes[file, code, index] = outcome

    def outcome(self, module: Module, rule: Rule) -> str | None:
        """What became of a rule: `caught`, `hung`, `survived`; None when it was not tried."""
        return self.outcomes.get((module.file, module.hash, rule.index))

    def is_done(self, module: Module, rule: Rule) -> bool:
        """Whether the rule was tried before, or the time is over."""
        self.started = time.monotonic()
        return self.outcome(module, rule) is not None or self.left.value <= 0

    def result(self, module: Module, rule: Rule, code: int, nodes: list[str]) -> None:
        """Note how a broken rule ended."""
        self.left.value -= time.monotonic() - self.started
        key = (module.file, module.hash, rule.index)
        outcome = {0: "survived", TOO_LONG: "hung"}.get(code, "caught")
        self.outcomes[key] = outcome
        with self.path.open("a") as file:
            file.write(json.dumps([*key, outcome, self.tests, self.seconds]) + "\n")
        if outcome != "caught":
            text = f"{outcome.upper()} {describe(module, rule)} [{len(nodes)} tests]"
            sys.stderr.write(text + "\n")


def describe(module: Module, rule: Rule) -> str:
    """A rule in one line."""
    return f"{module.file}:{rule.line} {rule.how}: {rule.text}"


def excuses(name: str) -> dict[str, str]:
    """Rules that no test can notice, as `file how: text`, each with its reason."""
    path = Path(__file__).with_name(f"mutation_{name}.toml")
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
    tell = Teller(chosen.subject, _hash_of_tests(subject), modules, chosen)
    kept = KEPT / f"{chosen.subject}.coverage.json"

    def functions() -> int:
        def work(items: list[pytest.Item]) -> None:
            make_warm(subject.warm)
            found = coverage(items, every, modules, kept, subject.warm)
            forget(subject.warm)
            items[0].session.config._tmp_path_factory.getbasetemp()
            gc.freeze()  # a fork copies no page for the sake of its collector
            for module in modules:
                try_function_rules(items, module, found, tell)

        with_tests(subject.tests, work)
        return 0

    in_child(functions, float("inf"))
    tell.read()
    found = msgspec.json.decode(kept.read_bytes(), type=dict[str, Row])
    import_what_lasts(subject)
    for module in modules:
        try_import_rules(subject, module, found, tell)
    return summary(modules, tell, excuses(chosen.subject))


def _hash_of_tests(subject: Subject) -> str:
    files = [file for name in subject.tests for file in sorted((ROOT / name).rglob("*.py"))]
    files += [ROOT / name for name in subject.tests if name.endswith(".py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def summary(modules: list[Module], tell: Teller, excused: dict[str, str]) -> int:
    """Print the numbers of each module; the code says whether an unexcused survivor is left."""
    rows, texts = [], []
    for module in modules:
        count = dict.fromkeys(("caught", "hung", "excused", "survived", "not tried"), 0)
        for rule in module.rules:
            outcome = tell.outcome(module, rule) or "not tried"
            name = f"{module.file} {rule.how}: {rule.text}"
            if outcome == "survived" and name in excused:
                outcome = "excused"
                texts.append(f"- `{describe(module, rule)}`: {excused[name]}")
            elif outcome == "survived":
                texts.append(f"- SURVIVED `{describe(module, rule)}`")
            count[outcome] += 1
        rows.append((module.file, len(module.rules), *count.values()))
    total = ("all", *(sum(row[at] for row in rows) for at in range(1, 7)))
    print(
        "| module | rules | caught | hung | excused | survived | not tried |\n" + "|---" * 7 + "|"
    )
    for row in [*rows, total]:
        print("| " + " | ".join(map(str, row)) + " |")
    print("\n".join(texts))
    return 1 if total[5] or total[6] else 0


if __name__ == "__main__":
    sys.exit(main())
