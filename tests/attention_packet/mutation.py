"""Break every rule of the packet code once, and see its tests fail.

python -m tests.attention_packet.mutation run FILE [MODULE …]  takes each rule out; resumes
python -m tests.attention_packet.mutation table FILE           the numbers, as Markdown

A rule is a guard that refuses, a row of a rule table, a part of an `and`, an `or` or a comparison
of pairs, a bound, or a constraint of a field. It is taken out in a process of its own; no file is
changed. Only the tests in which it decided something are run: where a guard never held, no test
can miss it, and it has survived. FILE holds which tests these are, and the results so far.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = {
    "files": ("files", "refusals"),
    "documents": ("refusals", "files"),
    "geometry": ("refusals", "selection"),
    "selection": ("selection",),
    "analyze": ("selection", "report", "mirror"),
    "bits": ("bits", "numerics"),
    "metrics": ("numerics",),
    "mirror": ("mirror",),
    "report": ("report",),
    "comparisons": ("numerics", "selection"),
    "evidence": ("evidence",),
    "exporter": ("exporter",),
    "export_documents": ("exporter",),
    "attention_packet": ("refusals", "report", "exporter"),
}
"""The test modules that hold the rules of each module, named by its last part."""
MODULES = {
    **{f"cke.attention_packet.{name}": f"attention_packet/{name}.py" for name in tuple(TESTS)[:-1]},
    "cke.schemas.attention_packet": "src/cke/schemas/attention_packet.py",
}
NOTE = "__packet_rule__"
OPTIONS = ["-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not nightly and not oracle_torch"]
OPTIONS += ["--confcutdir=tests/attention_packet"]


class Rule:
    """One place that can be taken out; `part` is the operand, or -1 for the whole."""

    def __init__(self, node: ast.AST, part: int = -1) -> None:
        self.node, self.part = node, part

    @property
    def text(self) -> str:
        """What is taken out, on one line."""
        node, part = self.node, self.part
        match node:
            case ast.If():
                shown = f"if {ast.unparse(node.test)}"
            case ast.BoolOp():
                word = "and" if isinstance(node.op, ast.And) else "or"
                shown = f"… {word} {ast.unparse(node.values[part])}"
            case ast.Compare():
                shown = f"part {part} of {ast.unparse(node)}"
            case _:
                shown = ast.unparse(node)
        return " ".join(shown.split())

    def take_out(self) -> None:
        """The guard never holds, the part decides nothing, the bound is one up, the field free."""
        node = self.node
        match node:
            case ast.If():
                node.test = ast.Constant(False)
            case ast.BoolOp():
                node.values[self.part] = ast.Constant(isinstance(node.op, ast.And))
            case ast.Compare():
                for side in _pair(node):
                    side.elts[self.part] = ast.Constant(0)
            case ast.Tuple():
                node.elts[0] = ast.Constant(False)
            case ast.Assign():
                node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(1))
            case ast.Call():
                node.keywords = []

    def watch(self, key: str) -> None:
        """Note when the rule decides: a guard that holds, an operand of `and` that does not."""
        node = self.node
        match node:
            case ast.If():
                node.test = _noted(key, node.test, True)
            case ast.BoolOp():
                decides = isinstance(node.op, ast.Or)
                node.values[self.part] = _noted(key, node.values[self.part], decides)
            case ast.Compare():
                node.left = _noted(key, node.left, True)
            case ast.Tuple():
                node.elts[0] = _noted(key, node.elts[0], True)


def _noted(key: str, condition: ast.expr, decides: bool) -> ast.expr:
    arguments = [ast.Constant(key), condition, ast.Constant(decides)]
    return ast.Call(ast.Name(NOTE, ast.Load()), arguments, [])


def _pair(node: ast.AST) -> list[ast.Tuple]:
    """The two sides of a comparison of tuples written out; none of any other."""
    if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
        return []
    sides = [side for side in (node.left, node.comparators[0]) if isinstance(side, ast.Tuple)]
    return sides if len(sides) == 2 else []


def rules(tree: ast.AST) -> Iterator[Rule]:
    """Every rule, in the order of the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp):
            yield from (Rule(node, part) for part in range(len(node.values)))
        elif sides := _pair(node):
            yield from (Rule(node, part) for part in range(len(sides[0].elts)))
        elif (
            isinstance(node, ast.If)
            or (isinstance(node, ast.Tuple) and _is_row(node))
            or (isinstance(node, ast.Assign) and _is_bound(node))
            or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Meta")
        ):
            yield Rule(node)


def _is_row(node: ast.Tuple) -> bool:
    if len(node.elts) not in (2, 3) or not isinstance(node.ctx, ast.Load):
        return False
    first, *texts = node.elts
    condition = isinstance(first, ast.Compare | ast.Attribute | ast.UnaryOp)
    return condition and all(
        isinstance(text, ast.Constant | ast.JoinedStr | ast.Name) for text in texts
    )


def _is_bound(node: ast.Assign) -> bool:
    name = getattr(node.targets[0], "id", "")
    return name.startswith("MAX_") and isinstance(node.value, ast.Constant | ast.BinOp)


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with one rule taken out, and leaves no bytecode."""

    index = 0

    def path_stats(self, path: str) -> dict[str, float]:
        """There is never a cached file."""
        raise OSError

    def source_to_code(self, data, path, *, _optimize=-1):
        """The code of the changed tree."""
        return compiled(path, lambda found: found[self.index].take_out())


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, module: str, index: int) -> None:
        self.module, self.index = module, index

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec with the changing loader, for this module alone."""
        if name != self.module:
            return None
        loader = Loader(name, str(ROOT / MODULES[name]))
        loader.index = self.index
        return importlib.util.spec_from_file_location(name, loader.path, loader=loader)


def compiled(path: str | Path, change: Callable[[list[Rule]], None]) -> CodeType:
    """The code of a source file whose rules were changed."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    change(list(rules(tree)))
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


def put_in_place(module: str, change: Callable[[list[Rule]], None]) -> None:
    """Give the functions of a module that is imported already the code of its changed source."""
    codes: dict[str, CodeType] = {}
    pending = [compiled(ROOT / MODULES[module], change)]
    while pending:
        code = pending.pop()
        codes[code.co_qualname] = code
        pending += [item for item in code.co_consts if isinstance(item, CodeType)]
    found = list(vars(importlib.import_module(module)).values())
    found += [part for item in found if isinstance(item, type) for part in vars(item).values()]
    for item in found:
        function = item.fget if isinstance(item, property) else item
        if isinstance(function, FunctionType) and function.__module__ == module:
            function.__code__ = codes[function.__qualname__]


def forked(work: Callable[[], int]) -> int:
    """The exit code of work in a forked process, which says nothing."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Session:
    """One collection of all tests: notes which meet each rule, then takes the rules out."""

    def __init__(self, path: Path, chosen: Sequence[str]) -> None:
        self.path = path
        self.state = json.loads(path.read_text()) if path.is_file() else {"met": {}, "results": {}}
        self.chosen, self.test = chosen, ""
        self.items: dict[str, pytest.Item] = {}
        self.run: Callable[[str], bool] = lambda test: True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work in place of the tests."""
        self.items = items = {item.nodeid: item for item in session.items}

        def holds(test: str) -> bool:
            item = items[test]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            return session.testsfailed == 0

        self.run = holds
        modules = [m for m in MODULES if m.rpartition(".")[2] in (self.chosen or TESTS)]
        unknown = [module for module in modules if module not in self.state["met"]]
        if unknown:
            assert forked(lambda: self.note_all(unknown)) == 0, "a test fails as it is"
            self.state = json.loads(self.path.read_text())
        for module in modules:
            self.take_out_all(module)
        return True

    def note_all(self, modules: Sequence[str]) -> int:
        """Write down in which tests each rule of the modules decides."""
        met: dict[str, dict[str, None]] = {}

        def note(key: str, value: Any, decides: bool) -> Any:
            if bool(value) == decides:
                met.setdefault(key, {})[self.test] = None
            return value

        setattr(builtins, NOTE, note)
        for module in modules:
            put_in_place(module, lambda found, m=module: watch_all(m, found))
        for test in self.items:
            self.test = test
            if not self.run(test):
                return 1
        for module in modules:
            inside = (key for key in met if key.startswith(f"{module}:"))
            self.state["met"][module] = {key: list(met[key]) for key in inside}
        self.path.write_text(json.dumps(self.state, indent=1))
        return 0

    def take_out_all(self, module: str) -> None:
        """Take out every rule of a module that has no result yet."""
        file = MODULES[module]
        tree = ast.parse(ROOT.joinpath(file).read_text("utf-8"))
        for index, rule in enumerate(rules(tree)):
            key = f"{module}:{index}"
            if key in self.state["results"]:
                continue
            code = self.take_out(module, index, rule)
            self.state["results"][key] = {"survived": code == 0, "text": rule.text}
            self.path.write_text(json.dumps(self.state, indent=1))
            line = getattr(rule.node, "lineno", 0)
            word = "SURVIVED" if code == 0 else "caught  "
            print(f"{word} {file}:{line} {rule.text[:90]}", file=sys.stderr, flush=True)

    def take_out(self, module: str, index: int, rule: Rule) -> int:
        """0 when every test still holds without the rule."""
        if isinstance(rule.node, ast.Assign | ast.Call):
            return imported_anew(module, index)
        met = self.state["met"][module].get(f"{module}:{index}", [])
        tests = [test for test in met if test in self.items]

        def work() -> int:
            put_in_place(module, lambda found: found[index].take_out())
            return 0 if all(self.run(test) for test in tests) else 1

        return forked(work)


def watch_all(module: str, found: list[Rule]) -> None:
    """Note the decisions of every rule of a module."""
    for index, rule in enumerate(found):
        rule.watch(f"{module}:{index}")


def imported_anew(module: str, index: int) -> int:
    """The exit code of all tests of a module that is imported without a bound or a constraint."""
    names = TESTS[module.rpartition(".")[2]]
    program = (
        "import sys, pytest; from tests.attention_packet import mutation; "
        f"sys.meta_path.insert(0, mutation.Finder({module!r}, {index})); "
        f"sys.exit(pytest.main({[*OPTIONS, '-x', *map(_file, names)]!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False
    ).returncode


def _file(name: str) -> str:
    return f"tests/attention_packet/test_{name}.py"


def run(path: Path, chosen: Sequence[str]) -> int:
    """Take out every rule that has no result yet; the exit code says whether one survived."""
    session = Session(path, chosen)
    names = sorted({name for module in chosen or TESTS for name in TESTS[module]})
    pytest.main([*OPTIONS, *map(_file, names)], plugins=[session])
    return any(result["survived"] for result in session.state["results"].values())


def table(path: Path) -> str:
    """How many rules of each module were taken out, and how many of them were caught."""
    results = json.loads(path.read_text())["results"]
    rows = ["| module | rules taken out | caught |", "|---|---|---|"]
    counts = [0, 0]
    for module, file in MODULES.items():
        found = [r["survived"] for key, r in results.items() if key.startswith(f"{module}:")]
        rows.append(f"| `{file}` | {len(found)} | {found.count(False)} |")
        counts = [counts[0] + len(found), counts[1] + found.count(False)]
    return "\n".join([*rows, f"| all | {counts[0]} | {counts[1]} |"])


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands."""
    command, path, *chosen = arguments
    if command == "run":
        return run(Path(path), chosen)
    print(table(Path(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
