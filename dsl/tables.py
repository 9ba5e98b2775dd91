"""The grammar's parse tables: `grammar.json` is made of `grammar.lark` and loads in a few ms.

`python -m cke.dsl.tables` writes it; a test says when it is stale.
"""

import hashlib
import json
from importlib import resources
from typing import Any

from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

from cke.dsl.layout import Layout


def build() -> str:
    """Return the tables of `grammar.lark` as JSON; a conflict in the grammar is an error."""
    parser = Lark(_grammar(), parser="lalr", lexer="contextual", postlex=Layout())
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    data["options"]["postlex"] = None
    tables = {"grammar": digest(), "data": data, "memo": memo}
    return json.dumps(tables, separators=(",", ":")) + "\n"


def digest() -> str:
    """Return the sha256 of `grammar.lark`."""
    return hashlib.sha256(_grammar().encode()).hexdigest()


def _grammar() -> str:
    return (resources.files("cke.dsl") / "grammar.lark").read_text("utf-8")


def load(**options: Any) -> Lark:
    """Return the parser; `options` are those that lark takes when it loads tables."""
    tables = json.loads((resources.files("cke.dsl") / "grammar.json").read_bytes())
    machine = tables["data"]["parser"]["parser"]
    machine["states"] = _integer_keys(machine["states"])
    load_tables: Any = Lark._load_from_dict  # as a parser made by lark.tools.standalone does
    parser: Lark = load_tables(tables["data"], _integer_keys(tables["memo"]), **options)
    return parser


def _integer_keys(table: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in table.items()}


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name("grammar.json").write_text(build(), "utf-8")
