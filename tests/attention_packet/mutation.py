"""Break every rule of the packet reader once, and see its tests fail.

python -m tests.attention_packet.mutation [MODULE]   lists each rule, and whether a test caught it

A rule is a guard that refuses, a row of a rule table, a bound, or a constraint of a field. It is
taken out while its module is imported, in a process of its own; no file is changed.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = {
    "files": ("files", "refusals"),
    "documents": ("refusals", "files"),
    "geometry": ("refusals", "selection"),
    "selection": ("selection",),
    "analyze": ("selection", "report", "mirror"),
    "metrics": ("numerics",),
    "mirror": ("mirror",),
    "report": ("report",),
    "comparisons": ("numerics", "selection"),
    "evidence": ("evidence",),
    "exporter": ("exporter",),
    "attention_packet": ("refusals", "report", "exporter"),
}
"""The tests that hold the rules of each module, named by its last part."""
MODULES = {
    **{f"cke.attention_packet.{name}": f"attention_packet/{name}.py" for name in tuple(TESTS)[:-1]},
    "cke.schemas.attention_packet": "src/cke/schemas/attention_packet.py",
}
NEVER = ast.Constant(False)


def rules(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that states a rule, in the order of the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            yield node
        elif isinstance(node, ast.Tuple) and _is_rule(node):
            yield node
        elif isinstance(node, ast.Assign) and _is_bound(node):
            yield node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Meta":
            yield node


def _is_rule(node: ast.Tuple) -> bool:
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


def mutate(node: ast.AST) -> None:
    """Take the rule out: the guard never holds, the bound is one higher, the field is free."""
    match node:
        case ast.If():
            node.test = NEVER
        case ast.Tuple():
            node.elts[0] = NEVER
        case ast.Assign():
            node.value = ast.BinOp(node.value, ast.Add(), ast.Constant(1))
        case ast.Call():
            node.keywords = []


class MutatingLoader(importlib.machinery.SourceFileLoader):
    """Compiles one module with one rule taken out, and leaves no bytecode."""

    index = 0

    def path_stats(self, path: str) -> dict[str, float]:
        """There is never a cached file."""
        raise OSError

    def source_to_code(self, data, path, *, _optimize=-1):
        """The mutated code."""
        tree = ast.parse(data)
        mutate(list(rules(tree))[self.index])
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, module: str, index: int) -> None:
        self.module, self.index = module, index

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec with the mutating loader, for that module alone."""
        if name != self.module:
            return None
        loader = MutatingLoader(name, str(ROOT / MODULES[name]))
        loader.index = self.index
        return importlib.util.spec_from_file_location(name, loader.path, loader=loader)


def survives(module: str, index: int) -> bool:
    """Whether all tests of the module still hold without the rule; they run in a forked process."""
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--confcutdir=tests/attention_packet"]
    arguments += ["-m", "not nightly and not oracle_torch"]
    names = TESTS[module.rpartition(".")[2]]
    arguments += [f"tests/attention_packet/test_{name}.py" for name in names]
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.meta_path.insert(0, Finder(module, index))
        os._exit(int(pytest.main(arguments)))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code == 0


def main(chosen: Sequence[str]) -> int:
    """Try every rule of the chosen modules, or of all; the exit code says whether one survived."""
    survivors = 0
    for module, file in MODULES.items():
        if chosen and module.rpartition(".")[2] not in chosen and module not in chosen:
            continue
        for index, node in enumerate(rules(ast.parse(ROOT.joinpath(file).read_text("utf-8")))):
            alive = survives(module, index)
            survivors += alive
            text = " ".join(ast.unparse(node).split("\n")[0].split())[:90]
            print(f"{'SURVIVED' if alive else 'caught  '} {file}:{node.lineno} {text}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
