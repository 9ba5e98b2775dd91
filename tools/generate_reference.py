"""Write the pages of the reference that are made from tables; a test compares them.

python tools/generate_reference.py [FOLDER]
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("src", "")]

from cke.cli import build_app
from cke.errors.catalogue import catalogue
from cke.fidelity.laws import contract_page
from cke.kernel_registry.operators import OPERATORS
from cke.kernel_registry.operators.base import Attribute, Operand, Operator
from cke.oracles.exceptions import exceptions
from cke.oracles.points import ARCHITECTURES, family_names
from cke.xray.classes import ARCHITECTURE_POLICY, CLASSES, POLICY, STAGES
from tools.artifact_pages import differential_page, verify_contract_page
from tools.validator_pages import bugs_page

ROOT = Path(__file__).resolve().parent.parent
CIRCUITS = ROOT / "circuits"
NOTE = "<!-- made by tools/generate_reference.py; do not edit -->\n\n"


def cli_page() -> str:
    """Every command with its arguments and flags, from the application itself."""
    arguments, sys.argv = sys.argv, ["cke"]
    try:
        text = build_app().generate_docs(output_format="markdown")
    finally:
        sys.argv = arguments
    text = re.sub(r" \*\[env: [A-Z_]+\]\*", "", text)
    text = text.replace("# cke\n", "# Command line\n", 1)
    text = re.sub(r"## Table of Contents\n.*?(?=\n\*\*)", "", text, flags=re.DOTALL)
    head = "How a flag is set by a variable or a file: [settings](settings.md).\n\n"
    return text.replace("```console\ncke COMMAND\n```\n\n", head, 1).rstrip() + "\n"


def errors_page() -> str:
    """Every diagnostic code with its meaning and fix."""
    lines = ["# Diagnostic codes", "", "`cke explain CODE` prints the same.", ""]
    for code, page in catalogue().items():
        lines += [f"## {code}", "", f"**{page.title}**", "", page.explanation.strip(), ""]
        lines += [f"*Fix:* {page.fix.strip()}", ""]
        if isinstance(page.example, str) and "\n" in page.example:
            lines += ["```text", page.example.rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def operators_page() -> str:
    """The operator table."""
    lines = [
        "# Operators",
        "",
        "The closed vocabulary: an op of a program is a row of this table. Each has a float64",
        "definition in `kernel_registry/references`. An alternative in bold is the default.",
        "",
    ]
    for name in sorted(OPERATORS):
        lines += _operator(OPERATORS[name])
    return "\n".join(lines).rstrip() + "\n"


def _operator(operator: Operator) -> list[str]:
    lines = [f"## {operator.name}", "", operator.summary, ""]
    rows = [
        ("inputs", _operands(operator.inputs)),
        ("weights", _operands(operator.weights)),
        ("results", _operands(operator.results)),
        ("state", f"`{operator.state}`" if operator.state else ""),
        ("attributes", "; ".join(map(_attribute, operator.attributes))),
    ]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows if text]
    return [*lines, ""]


def _operands(operands: tuple[Operand, ...]) -> str:
    return ", ".join(f"`{item.name}`" + ("?" if item.absent else "") for item in operands)


def _attribute(attribute: Attribute) -> str:
    alternatives = " \\| ".join(
        f"**{value}**" if value == attribute.default else str(value)
        for value in attribute.alternatives
    )
    return f"`{attribute.name}` {alternatives or attribute.kind}"


def blocks_page() -> str:
    """The shared files of the library, as they are."""
    lines = [
        "# Shared blocks",
        "",
        "What `use blocks.NAME` makes visible. A name under `given` is set by a row of a circuit's",
        "config or schedule; the points are checkpoints that every later tool knows by name.",
        "",
    ]
    for path in sorted(CIRCUITS.joinpath("blocks").glob("*.circuit")):
        text = path.read_text(encoding="utf-8").rstrip()
        lines += [f"## blocks.{path.stem}", "", "```text", text, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def families_page() -> str:
    """The circuits of the library, each with its one-line summary."""
    lines = ["# Circuits of the library", "", "| circuit | what it is |", "|---|---|"]
    for path in sorted(CIRCUITS.glob("*.circuit")):
        head = path.read_text(encoding="utf-8").partition("\n")[0]
        summary = head.partition('"')[2].rpartition('"')[0]
        parent = head.partition(" from ")[2].partition("@")[0]
        origin = f" (from `{parent}`)" if parent else ""
        lines.append(f"| `{path.stem}` | {summary}{origin} |")
    return "\n".join(lines) + "\n"


def oracles_page() -> str:
    """The oracles: which families each answers for, and what it does not answer for."""
    served = {
        "pytorch": set(family_names()),
        "llamacpp": set(ARCHITECTURES),
    }
    lines = [
        "# Oracles",
        "",
        "An oracle computes the same tokens by other means and states what it is: its version, the",
        "dtype of its loaded tensors, its settings. What it states is measured on its tensors and",
        "process (`oracles/facts.py`). `reference`, the float64 interpreter, answers for every",
        "circuit; a trace folder, or a dump read by `cke oracle import`, is an oracle too.",
        "",
        "| model type | pytorch | llamacpp | reference |",
        "|---|---|---|---|",
    ]
    for name in sorted(served["pytorch"] | served["llamacpp"]):
        marks = ["yes" if name in names else "no" for names in served.values()]
        lines.append(f"| `{name}` | {' | '.join(marks)} | yes |")
    lines += [
        "",
        "## Exceptions",
        "",
        "The parity tests compare every checkpoint of every family in f32 and bf16, and allow",
        "these and nothing else outside the budget. *Not shown*: there is nothing to compare.",
        "*Over*: another computation.",
        "",
        "| oracle | family | dtype | checkpoint | kind | why |",
        "|---|---|---|---|---|---|",
    ]
    for item in exceptions():
        where = [f"`{text}`" for text in (item.family, item.dtype, item.checkpoint)]
        kind = item.kind.replace("_", " ") + (", and what follows" if item.onward else "")
        lines.append(f"| {item.oracle} | {' | '.join(where)} | {kind} | {item.why} |")
    return "\n".join(lines) + "\n"


def classes_page() -> str:
    """The failure classes of X-Ray, stage by stage, and who owns what."""
    lines = [
        "# Failure classes of X-Ray",
        "",
        "`cke xray` ends in exactly one of these, or in an open question with a probe. Stages run",
        "in this order, and a finding in one stops the later ones.",
        "",
    ]
    for stage in STAGES:
        rows = [row for row in CLASSES.values() if row.stage == stage]
        lines += [f"## {stage.capitalize()}", "", "| class | owner | what to do |", "|---|---|---|"]
        for row in rows:
            owners = ", or ".join(f"`{owner}`" for owner in row.owners)
            lines.append(f"| `{row.name}` | {owners} | {row.action} |")
        lines.append("")
    lines += ["## Owners", "", "| owner | where its fix lands |", "|---|---|"]
    lines += [f"| `{owner}` | {where} |" for owner, where in ARCHITECTURE_POLICY.items()]
    return "\n".join([*lines, "", f"{POLICY}."]) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "blocks.md": blocks_page,
    "circuits.md": families_page,
    "contracts/fidelity-laws.md": contract_page,
    "../lis_verify_contract.md": verify_contract_page,
    "cli.md": cli_page,
    "differential-verification.md": differential_page,
    "errors.md": errors_page,
    "operators.md": operators_page,
    "oracles.md": oracles_page,
    "public-bugs.md": bugs_page,
    "xray-classes.md": classes_page,
}


def main() -> None:
    """Write every page into the folder."""
    default = ROOT / "docs" / "reference"
    folder = Path(sys.argv[1]) if sys.argv[1:] else default
    for name, page in PAGES.items():
        folder.joinpath(name).write_text(NOTE + page(), encoding="utf-8")


if __name__ == "__main__":
    main()
