"""The table of contract lines and tests: `python -m tests.attention_packet.contract_table`."""

import ast
from pathlib import Path

PAGE = Path("docs/reference/attention-packet.md")
START, END = "<!-- table -->", "<!-- end -->"


def find_tests(folder: Path) -> dict[str, list[str]]:
    """The tests that carry each line, as `file::test`."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text("utf-8")
        if "PKT-" not in text:
            continue
        tree = ast.parse(text)
        marked_names = _names(tree)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for line in _lines(node, marked_names):
                    found.setdefault(line, []).append(f"{path.stem}::{node.name}")
    return found


def _names(tree: ast.Module) -> dict[str, set[str]]:
    """Module constants that hold marks, each with its lines."""
    return {
        target.id: _marks(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _lines(function: ast.FunctionDef, names: dict[str, set[str]]) -> set[str]:
    lines: set[str] = set()
    for decorator in function.decorator_list:
        lines |= _marks(decorator)
        for node in ast.walk(decorator):
            if isinstance(node, ast.Name):
                lines |= names.get(node.id, set())
    return lines


def _marks(tree: ast.AST) -> set[str]:
    return {
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "contract"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }


def table(folder: Path) -> str:
    """The Markdown table, in the order of the lines."""
    found = find_tests(folder)
    rows = ["| line | tests |", "|---|---|"]
    for line in sorted(found, key=lambda name: int(name.partition("-")[2])):
        tests = "<br>".join(f"`{test}`" for test in dict.fromkeys(found[line]))
        rows.append(f"| {line} | {tests} |")
    return "\n".join(rows)


def page_with_table(text: str, folder: Path) -> str:
    """The page with its table made again."""
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n\n{table(folder)}\n\n{END}{tail}"


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent.parent
    page = root / PAGE
    page.write_text(page_with_table(page.read_text("utf-8"), root / "tests"), "utf-8")
