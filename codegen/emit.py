"""Serialised CallIR → Python text. Nothing else is read: no circuit, no registry, no compiler.

Goal: code that an engineer enjoys reading, the same bytes for the same CallIR. Non-goal: any
decision about numbers or dataflow; those ended with CallIR.
"""

from functools import cache
from importlib.resources import files
from io import StringIO
from tokenize import COMMENT, DEDENT, INDENT, NEWLINE, NL, generate_tokens

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined

from cke.codegen.view import module_view, package_view
from cke.schemas.call_ir import CallIR

BRACKETS = ("(", "[", "{"), (")", "]", "}")


def emit(serialised: bytes) -> dict[str, str]:
    """Return the modules of a package, by file name, from CallIR as JSON."""
    ir = msgspec.json.decode(serialised, type=CallIR)
    templates = _templates()
    module = templates.get_template("module.py.j2")
    package = templates.get_template("package.py.j2")
    texts = {"__init__.py": package.render(view=package_view(ir))}
    for program in ir.programs:
        texts[f"{program.phase}.py"] = module.render(view=module_view(ir, program))
    return texts


def line_table(text: str) -> dict[int, str]:
    """Return the circuit line of every generated line that a call covers.

    It reads tokens: Python 3.11 cannot make syntax trees in two threads at once.
    """
    table: dict[int, str] = {}
    first, place, depth, assigns = 0, "", 0, False
    for token in generate_tokens(StringIO(text).readline):
        if token.type == COMMENT:
            place = token.string.removeprefix("# ")
        elif token.type == NEWLINE:
            if assigns and place:
                table |= dict.fromkeys(range(first, token.start[0] + 1), place)
            first, assigns = 0, False
        elif token.type not in (NL, INDENT, DEDENT):
            first, place = first or token.start[0], ""
            depth += (token.string in BRACKETS[0]) - (token.string in BRACKETS[1])
            assigns = assigns or (token.string == "=" and depth == 0)
    return table


@cache
def _templates() -> Environment:
    return Environment(
        loader=FunctionLoader(_template),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _template(name: str) -> str:
    return (files("cke.codegen") / "templates" / name).read_text()
