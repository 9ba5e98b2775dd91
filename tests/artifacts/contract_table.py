"""The LIS lines and the tests that hold them: `python -m tests.artifacts.contract_table`."""

import ast

from tests.meta.contracts import ROOT, _marked, declared_lines

FILES = ("tests/artifacts", "tests/cli/test_run_artifacts.py")


def tests_by_line() -> dict[str, list[str]]:
    """The tests that carry each line, as `file::test`."""
    found: dict[str, list[str]] = {}
    for name in FILES:
        path = ROOT / name
        for file in sorted(path.glob("test_*.py")) if path.is_dir() else [path]:
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef):
                    for line in _lines(node):
                        found.setdefault(line, []).append(f"{file.stem}::{node.name}")
    return found


def _lines(function: ast.FunctionDef) -> set[str]:
    return {line for decorator in function.decorator_list for line in _marked(decorator)}


def table() -> str:
    """The Markdown table, every LIS line with its tests."""
    found = tests_by_line()
    rows = ["| line | tests |", "|---|---|"]
    for line in declared_lines():
        if line.startswith("LIS-"):
            tests = "<br>".join(f"`{test}`" for test in found.get(line, ["none"]))
            rows.append(f"| {line} | {tests} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
