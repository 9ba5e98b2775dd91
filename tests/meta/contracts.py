"""Which contract lines have a test: `python -m tests.meta.contracts` lists those without.

The lines stand in docs/reference/contracts/*.md, the tests are found by their marker
`@pytest.mark.contract("XRAY-7")`, which may name several lines.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROW = re.compile(r"^\| ([A-Z]+-[0-9.]+) \| (.+) \|$", re.MULTILINE)

ENFORCED: tuple[str, ...] = ("XRAY", "PKT", "LIS", "LAW")
"""Lines, or whole prefixes such as `LIS`, that must have a test; grows as areas are finished."""

WITHOUT_SUBJECT: tuple[str, ...] = ("LAW-14.24",)
"""Lines about what does not exist here: no synthetic cells are made that could match wrongly."""


def declared_lines() -> dict[str, str]:
    """Every contract line with its statement, in page order."""
    pages = sorted(ROOT.joinpath("docs/reference/contracts").glob("*.md"))
    return {line: text for page in pages for line, text in ROW.findall(page.read_text("utf-8"))}


def lines_with_tests() -> dict[str, list[str]]:
    """The lines that tests carry, each with the files that do."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.joinpath("tests").rglob("*.py")):
        for line in _marked(ast.parse(path.read_text("utf-8"))):
            found.setdefault(line, []).append(str(path.relative_to(ROOT)))
    return found


def _marked(tree: ast.AST) -> set[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    markers = [c for c in calls if getattr(c.func, "attr", getattr(c.func, "id", "")) == "contract"]
    values = [a.value for call in markers for a in call.args if isinstance(a, ast.Constant)]
    return {value for value in values if isinstance(value, str)}


def is_enforced(line: str) -> bool:
    """Whether the line must have a test by now."""
    named = line in ENFORCED or line.partition("-")[0] in ENFORCED
    return named and line not in WITHOUT_SUBJECT


def main() -> int:
    """Print the lines without a test, and how many have one."""
    declared, tested = declared_lines(), lines_with_tests()
    missing = [line for line in declared if line not in tested]
    for line in missing:
        print(f"{line:<10} {'ENFORCED  ' if is_enforced(line) else ''}{declared[line]}")
    print(f"{len(declared) - len(missing)} of {len(declared)} contract lines have a test")
    return 1 if any(map(is_enforced, missing)) else 0


if __name__ == "__main__":
    sys.exit(main())
