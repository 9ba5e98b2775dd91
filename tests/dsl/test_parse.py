"""Every library file parses, and the tables are those of the grammar."""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import pytest

from cke.dsl import syntax, tables
from cke.dsl.parse import SyntaxErrors, parse

CIRCUITS = sorted(Path(str(resources.files("cke.circuits"))).rglob("*.circuit"))


@pytest.mark.parametrize("path", CIRCUITS, ids=lambda path: path.stem)
def test_library_file_parses(path: Path) -> None:
    file = parse(path.read_bytes(), f"circuits/{path.name}")
    assert file.items


def test_threads_that_parse_at_once_do_not_meet(switching_threads: None) -> None:
    texts = [path.read_bytes() for path in CIRCUITS[:8]]
    alone = [parse(text, "a.circuit") for text in texts]
    with ThreadPoolExecutor(len(texts)) as pool:
        together = list(pool.map(lambda text: parse(text, "a.circuit"), texts))
    assert together == alone


def test_tables_are_those_of_the_grammar() -> None:
    data = json.loads((resources.files("cke.dsl") / "grammar.json").read_bytes())
    assert data["grammar"] == tables.digest(), "run `python -m cke.dsl.tables`"


def test_spans_name_line_and_columns() -> None:
    file = parse("\ncircuit a@1\nconfig:\n  eps: float = (hf.eps ?? 1e-6)\n", "a.circuit")
    config = file.items[1]
    assert isinstance(config, syntax.Config)
    row = config.rows[0]
    assert isinstance(row, syntax.Bind)
    assert str(row.span) == "a.circuit:4:3"
    assert (row.value.span.column, row.value.span.end_column) == (17, 31)


def test_parameter_point_and_renames_parse() -> None:
    head = "block b(x: [B, T, D] @ layer_input@2) -> [B, T, D]:\n"
    text = head + "  points: F = A M, K = H\n  return x\n"
    block = parse(text, "a.circuit").items[0]
    assert isinstance(block, syntax.Block)
    assert block.parameters[0].point is not None
    assert block.parameters[0].point.version == 2
    assert [rename.axis.name for rename in block.renames] == ["F", "K"]


def test_every_broken_item_is_reported() -> None:
    text = "circuit a@1\nconfig:\n  a = \nschedule i in L\nmodel m m\nuse blocks.x\n"
    with pytest.raises(SyntaxErrors) as caught:
        parse(text, "a.circuit")
    assert [item.code for item in caught.value.diagnostics] == ["CKE110", "CKE105", "CKE110"]
